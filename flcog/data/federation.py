"""Federation: samples with their partition over clients. Exchange: the result of an exchange of data before round 1."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from flcog.core.precision import sent
from flcog.core.source import Source
from flcog.core.text import TopicList
from flcog.core.trees import Tree, map_leaves
from flcog.data.order import Order
from flcog.data.partition import Partition
from flcog.data.samples import Augment, Samples, Task


@dataclass(frozen=True, repr=False)
class Federation(TopicList):
    """The data of a run. A method's ``prepare_data`` may return a changed copy (``dataclasses.replace``).

    ``client_val`` and ``client_test`` hold out parts of the clients' own samples: partitions of ``train`` too, disjoint from
    ``partition``.
    """

    train: Samples
    partition: Partition
    task: Task
    num_classes: int
    preprocess: Callable[[Tree], Tree]
    val: Samples | None = None
    test: Samples | None = None
    client_val: Partition | None = None
    client_test: Partition | None = None
    reweighted_test: bool = False
    """Whether a client is tested on ``test``, every class weighted by its share of the client's samples."""
    augment: Augment | None = None
    order: Order | None = None
    """The order in which the clients read the training set; None if they shuffle it."""
    class_names: tuple[str, ...] | None = None
    whole: Partition | None = None
    """The split as the partitioner made it, before parts were held out; None if it is ``partition``."""
    edges: Tensor | None = None
    """The edges of a regression's bins, if they were agreed before; None computes them from the targets."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Facts in which the data of all institutions agree, such as the columns of a table: texts, or lists of texts, by name."""

    is_complete: ClassVar[bool] = True
    """Whether it contains the data of all clients, and not the server's sets alone."""

    def _topics(self) -> Iterator[tuple[str, str]]:
        sizes = self.partition.sizes
        yield "task", f"{self.task}, {self.num_classes:,} classes" if self.has_classes else self.task
        yield "clients", f"{self.num_clients:,}, with {sizes.min():,} to {sizes.max():,} samples"
        yield "training", f"{sizes.sum():,} of {len(self.train):,} samples, partition {self.split.hash}"
        for name, samples, part in (("validation", self.val, self.client_val), ("test", self.test, self.client_test)):
            own = "" if part is None else f"{len(part.indices):,} held out by the clients"
            central = "" if samples is None else f"{len(samples):,} samples"
            yield name, ", ".join(filter(None, (central, own))) or "none"

    @property
    def has_classes(self) -> bool:
        """Whether the targets are classes or labels."""
        return self.task in ("classification", "multilabel")

    @property
    def sizes(self) -> np.ndarray:
        """The number of training samples of each client, int64."""
        return self.partition.sizes

    @property
    def num_clients(self) -> int:
        return len(self.sizes)

    @property
    def sets(self) -> dict[str, Samples]:
        """The sets that exist, by the names that users know."""
        sets = {"training": self.train, "validation": self.val, "test": self.test}
        return {name: samples for name, samples in sets.items() if samples is not None}

    @property
    def needs_keys(self) -> bool:
        """Whether reading a training sample needs a key (one for each sample, round and client)."""
        return self.augment is not None or isinstance(self.train.inputs, Source)

    @property
    def split(self) -> Partition:
        """The whole partition, held-out samples included, as papers cite it and ``Saved`` loads it."""
        return self.whole or self.partition

    def only(self, clients: Sequence[int]) -> "Federation":
        """The data of some clients alone, as their own machine has them: other clients have no samples here.

        Clients keep their numbers. Inputs that are read while the model trains stay where they are.
        """
        parts = [part and _restricted(part, set(clients)) for part in (self.partition, self.client_val, self.client_test)]
        train, order = self.train, self.order
        if not isinstance(train.inputs, Source):
            rows = np.unique(np.concatenate([part.indices for part in parts if part is not None]))
            train, order = train.subset(rows), order and order.only(rows)
            parts = [part and Partition(np.searchsorted(rows, part.indices), part.offsets) for part in parts]
        partition, client_val, client_test = parts
        assert partition is not None
        return replace(
            self,
            train=train,
            order=order,
            partition=partition,
            client_val=client_val,
            client_test=client_test,
            val=None,
            test=self.test if self.reweighted_test else None,
            whole=None,
            edges=self.bin_edges if self.task == "regression" else None,
        )

    def between(self, first: int, end: int) -> "Federation":
        """The same with the clients from ``first`` up to ``end`` alone, which are numbered from 0 again."""
        names = ("partition", "client_val", "client_test", "whole")
        parts: dict[str, Partition | None] = {name: getattr(self, name) for name in names}
        return replace(self, **{name: part and part.between(first, end) for name, part in parts.items()})  # type: ignore[arg-type]

    def sums(self, clients: Sequence[int], mean: Tensor | None) -> Tensor:
        """The sums over each client's rows, held-out ones too, for :func:`flcog.data.preprocess.standardisation`."""
        parts = [part for part in (self.partition, self.client_val, self.client_test) if part is not None]
        rows = [np.sort(np.concatenate([part.client(client) for part in parts])) for client in clients]
        counts = np.array([len(own) for own in rows])
        values = self.train.inputs[torch.from_numpy(np.concatenate(rows))].cpu().double().numpy()
        starts = np.concatenate([[0], np.cumsum(counts)[:-1]])
        if mean is not None:
            return torch.from_numpy(np.add.reduceat((values - mean.numpy()) ** 2, starts, axis=0))
        return torch.from_numpy(np.concatenate([counts[:, None], np.add.reduceat(values, starts, axis=0)], 1))

    def load(self, samples: Samples, indices: Tensor, device: torch.device, keys: np.ndarray | None = None) -> tuple[Tree, Tree]:
        """Model-ready inputs and targets at ``indices``; augmented where ``keys`` (one per sample) are given."""
        return self.ready(samples, samples.gather(indices, keys), indices, device, keys)

    def ready(
        self, samples: Samples, gathered: Tree, indices: Tensor, device: torch.device, keys: np.ndarray | None = None
    ) -> tuple[Tree, Tree]:
        """The same where the inputs have been gathered."""
        inputs = map_leaves(lambda leaf: sent(leaf, device), gathered)
        if self.augment is not None and keys is not None:
            inputs = self.augment(inputs, keys)
        targets = map_leaves(lambda leaf: leaf.index_select(0, sent(indices, leaf.device)).to(device), samples.targets)
        return self.preprocess(inputs), targets

    def label_counts(self, k: int) -> Tensor:
        """How many of client k's training samples carry each label (float64 [num_classes]); regression counts bins of the target.

        ``flcog.data.label_statistics.label_table`` counts the labels of all clients at once.
        """
        return self._count_labels(self.partition.client(k))

    @cached_property
    def pooled_label_counts(self) -> Tensor:
        """The label counts of all clients together. Counted once: each evaluation may ask for them."""
        return self._count_labels(self.partition.indices)

    def _count_labels(self, indices: np.ndarray) -> Tensor:
        everything = self.values if self.task == "regression" else self.train.labels
        targets = everything[torch.from_numpy(indices).to(everything.device)]
        if self.task == "multilabel":
            return targets.cpu().double().sum(0)
        if self.task == "regression":
            targets = torch.bucketize(targets, self.bin_edges)
        return torch.bincount(targets.cpu(), minlength=self.num_classes).double()

    @property
    def values(self) -> Tensor:
        """A regression's targets as one number each: of a vector, its first coordinate."""
        labels = self.train.labels
        return labels if labels.ndim == 1 else labels[:, 0]

    @cached_property
    def bin_edges(self) -> Tensor:
        """Inner edges of equal-mass bins of a regression target: its "labels" wherever a method needs a distribution.

        They are quantiles over the whole training set, hence over all clients' targets, as if known beforehand. No bytes are
        counted for them. Every bin holds a sample: repeated values stay in one, so tied targets have fewer bins than
        ``num_classes``, the same as the splits by label see.
        """
        if self.edges is not None:
            return self.edges.to(self.train.labels)
        quantiles = torch.linspace(0, 1, self.num_classes + 1, dtype=torch.float64)[1:-1]
        # torch.quantile refuses more than 16 million values; numpy does not.
        edges = torch.from_numpy(np.quantile(self.values.cpu().double().numpy(), quantiles.numpy())).to(self.train.labels)
        return edges[torch.bucketize(self.values.contiguous(), edges).unique()[:-1]]


class CentralSets(Federation):
    """The data of a server whose clients are in other processes: the central sets alone."""

    is_complete = False
    _sizes: np.ndarray

    @property
    def sizes(self) -> np.ndarray:
        """The numbers of samples that the clients have told the server."""
        return self._sizes

    @classmethod
    def of(cls, federation: Federation, sizes: np.ndarray) -> "CentralSets":
        """The central sets of a federation, beside the sizes of the clients' data."""
        made = cls(**{field.name: getattr(federation, field.name) for field in fields(federation)})
        object.__setattr__(made, "_sizes", sizes)
        return made

    def __getattribute__(self, name: str) -> Any:
        if name in ("train", "partition", "client_val", "client_test", "whole"):
            raise ValueError(
                "the clients run in other processes and keep their data: remove callbacks and commands that read all data"
            )
        return super().__getattribute__(name)


def _restricted(partition: Partition, clients: Collection[int]) -> Partition:
    """The partition in which all but these clients have no samples."""
    nothing = partition.indices[:0]
    return Partition.from_clients([partition.client(k) if k in clients else nothing for k in range(partition.num_clients)])


@dataclass(frozen=True)
class Exchange:
    """The result of a method's exchange of data before round 1. A method may derive a class with more fields for its hooks and
    observers.

    Args:
        federation: the data from now on. If it has fewer clients than its ``split``, each client does the work of all clients
            that were merged into it.
        bytes_sent: bytes of all clients together, up and down; None if nothing was exchanged.
        folder: the folder of the exchanged data, if it is on disk.
    """

    federation: Federation
    bytes_sent: tuple[int, int] | None = None
    folder: Path | None = None
