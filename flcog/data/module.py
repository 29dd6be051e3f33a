"""The base class of data modules: a data set, its split over clients, and how batches are made of it."""

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import lightning as L
import numpy as np
import torch
from torch import Tensor

from flcog.core import checks
from flcog.core.labels import require_targets
from flcog.core.text import TopicList
from flcog.core.trees import Tree, leaves
from flcog.data.federation import Federation
from flcog.data.order import Order
from flcog.data.partition import IID, Natural, Partition, Partitioner, partition_by
from flcog.data.preprocess import Preprocess, standardisation
from flcog.data.samples import Augment, NewInputs, Samples, Splits, Task, require_finite_inputs

NUM_CLIENTS = 10
"""The number of clients if the user gives none."""


class FederatedDataModule(TopicList, L.LightningDataModule):
    """A data set, its split over clients, and how batches are made of it.

    A data set's own file implements :meth:`load` (and :meth:`prepare_data` where it downloads or decodes) and names its ``task``,
    ``num_classes`` and normalisation; everything else is here.

    Args:
        num_clients: how many clients the training set is divided over. Users, saved splits and splits of your own have a number of their
            own, and a note says so if you set another.
        partitioner: how; see ``flcog.datamodules`` for the splits of the literature. By default the users are the clients, if the data set
            has users, and otherwise IID.
        batch_size: samples per local step.
        eval_batch_size: samples per evaluation step.
        partition_seed: fixes the split; independent of the trainer's seed, so that seeds can be compared on one split.
        client_test: fraction of each client's samples held out to measure the client's own accuracy; or ``reweighted`` to measure it
            on the whole test set, every class weighted by its share of the client's samples, which takes none from training
            (classification; FedCOG's "personalized test dataset", Figure 2 and Table 9, https://arxiv.org/abs/2312.05966). That costs
            an evaluation of each client's own model, where a method keeps such.
        client_val: fraction of each client's samples held out for the client's own choices.
        new_clients: how many of the clients, the last ones, never train; ``trainer.test(new_clients=True)`` measures them.
        drop_last: drop the last, smaller batch of each local epoch (a client smaller than one batch still trains on all its
            samples).
        join_test: whether the test set joins the training set before the split, as in PFLlib, so that ``client_test`` alone measures.
        test_like_clients: reduce the test set until each class has the same share as in all clients' samples together, as in
            FedDisco's study of global imbalance (Table 5, https://arxiv.org/abs/2305.19229). It needs a sample of each of them.
    """

    task: Task = "classification"
    num_classes: int
    class_names: tuple[str, ...] | None = None
    notes: tuple[str, ...] = ()
    """Choices made on the user's behalf, for the run's summary."""
    order: Order | None = None
    """The order in which clients read the training set; None if they shuffle it. It is known when the data is loaded."""

    def __init__(
        self,
        num_clients: int = NUM_CLIENTS,
        partitioner: Partitioner | None = None,
        batch_size: int = 64,
        eval_batch_size: int = 1000,
        partition_seed: int = 0,
        client_test: float | Literal["reweighted"] = 0.0,
        client_val: float = 0.0,
        drop_last: bool = False,
        test_like_clients: bool = False,
        new_clients: int = 0,
        join_test: bool = False,
    ) -> None:
        super().__init__()
        checks.whole(self, 1, num_clients=num_clients, batch_size=batch_size, eval_batch_size=eval_batch_size)
        checks.whole(self, 0, new_clients=new_clients)
        self.reweighted_test = client_test == "reweighted"
        held_out: Any = 0.0 if self.reweighted_test else client_test
        checks.within(self, "[0, 1)", client_test=held_out, client_val=client_val, hint="it is a fraction of a client's samples")
        checks.within(self, "[0, 1)", **{"client_test + client_val": held_out + client_val})
        self.num_clients, self.partitioner, self.partition_seed = num_clients, partitioner, partition_seed
        self.batch_size, self.eval_batch_size, self.drop_last = batch_size, eval_batch_size, drop_last
        self.client_test, self.client_val, self.test_like_clients = held_out, client_val, test_like_clients
        checks.seed(self, "partition_seed")
        self.new_clients, self.join_test = new_clients, join_test
        self._federation: Federation | None = None
        self._newcomers: Federation | None = None

    @property
    def hooked(self) -> L.LightningDataModule:
        """The data module whose hooks may change batches: itself, or the user's data module inside it."""
        return self

    @property
    def loaders_of(self) -> L.LightningModule | None:
        """The model whose own loaders provide the data, and whose ``setup`` has prepared them. None for all other data."""
        return None

    def load(self) -> Splits:
        """The data set's splits, read from its files."""
        raise NotImplementedError(f"{type(self).__name__} must implement load()")

    def new_inputs(self, rows: Any) -> NewInputs:
        """Inputs to predict, from a data frame or from a list of texts or paths, with the categories and words of the training set."""
        kind = "a table" if hasattr(rows, "columns") else f"{str(rows[0])!r:.80} as an input"
        raise ValueError(f"{type(self).__name__} cannot read {kind}: give arrays as it stores them, in an .npy or .npz file")

    def preprocess(self) -> Callable[[Tree], Tree]:
        """From stored inputs to model inputs."""
        return Preprocess()

    def augment(self) -> Augment | None:
        """Random changes of training inputs, or None."""
        return None

    def facts(self) -> dict[str, Any]:
        """Facts in which the data of all institutions must agree, beside the task and the form of the inputs: short texts, or lists."""
        return {}

    def setup(self, stage: str | None = None) -> None:
        if self._federation is not None:
            return
        splits = self.load()
        self._check(splits)
        if self.join_test and splits.test is not None:
            splits = replace(splits, train=splits.train.joined(splits.test), test=None)
        self.partitioner = self.partitioner or (IID() if splits.train.users is None else Natural())
        whole = partition_by(self.partitioner, splits.train, self.num_clients, self.partition_seed)
        if self.num_clients not in (whole.num_clients, NUM_CLIENTS):
            maker = getattr(self.partitioner, "__name__", type(self.partitioner).__name__)
            self.notes += (f"num_clients={self.num_clients} has no effect: {maker} makes {whole.num_clients:,} clients",)
        partition, client_test, client_val = _hold_out(whole, (self.client_test, self.client_val), self.partition_seed)
        empty = np.flatnonzero(partition.sizes == 0)
        if len(empty):
            raise ValueError(
                f"{len(empty)} of {partition.num_clients} clients have no training samples (the first is client {empty[0]}): "
                "use fewer clients, a larger beta, or a partitioner with a minimum size"
            )
        test = splits.test
        if (self.reweighted_test or self.test_like_clients) and (test is None or self.task != "classification"):
            lack = "no test set" if test is None else f"the task {self.task}"
            raise ValueError(
                f"client_test=reweighted and test_like_clients need a test set of classes; {type(self).__name__} has {lack}"
            )
        if test is not None and self.test_like_clients:
            test = _with_shares_of(test, splits.train.labels[whole.indices], self.partition_seed)
        self._federation = Federation(
            train=splits.train,
            partition=partition,
            task=self.task,
            num_classes=self.num_classes,
            preprocess=self.preprocess(),
            val=splits.val,
            test=test,
            client_val=client_val if self.client_val else None,
            client_test=client_test if self.client_test else None,
            reweighted_test=self.reweighted_test,
            augment=self.augment(),
            order=self.order,
            class_names=self.class_names,
            whole=whole if self.client_test or self.client_val else None,
            facts=self.facts() | _facts(splits.train),
        )
        if self.new_clients:
            checks.within(self, f"[0, {whole.num_clients})", "new_clients", hint="the other clients train")
            known = self._federation.num_clients - self.new_clients
            self._newcomers, self._federation = (
                self._federation.between(known, whole.num_clients),
                self._federation.between(0, known),
            )
            self.notes += (f"{self.new_clients:,} of {whole.num_clients:,} clients never train: test with new_clients=true",)
        preprocess = self._federation.preprocess
        if isinstance(preprocess, Preprocess) and preprocess.fitted:
            preprocess.take(*standardisation(partial(self._federation.sums, range(self._federation.num_clients))))

    def _topics(self) -> Iterator[tuple[str, str]]:
        yield "split", f"{self.num_clients:,} clients by {self.partitioner or 'default'}, seed {self.partition_seed}"
        yield "batches", f"of {self.batch_size:,}"
        if self._federation is None:
            yield "data", "not read yet"
        else:
            yield from self._federation._topics()

    def only(self, clients: Sequence[int]) -> "FederatedDataModule":
        """A copy with the data of some clients alone, as their own machine has them. The clients keep their numbers."""
        own = copy.copy(self)
        own._federation = self.federation.only(clients)
        return own

    @property
    def newcomers(self) -> "FederatedDataModule":
        """A copy with the data of the new clients alone."""
        own, federation = copy.copy(self), self.federation
        if self._newcomers is None or (federation.client_test is None and not federation.reweighted_test):
            raise ValueError(
                "new clients are measured on held-out parts of their own: set new_clients and client_test of the data, to 5 and 0.2 for "
                f"example; got {self.new_clients} and {self.client_test}"
            )
        own._federation = self._newcomers
        return own

    def _check(self, splits: Splits) -> None:
        """Refuse samples that the federation could not use."""
        for part, samples in (("training", splits.train), ("validation", splits.val), ("test", splits.test)):
            if samples is not None:
                require_finite_inputs(samples, f"{type(self).__name__}: the {part} set")
            if samples is not None and samples.labelled:
                require_targets(samples.labels, self.task, self.num_classes, f"{type(self).__name__}: the {part} set")

    @property
    def federation(self) -> Federation:
        """The loaded data, split over clients."""
        if self._federation is None:
            self.prepare_data()
            self.setup()
        assert self._federation is not None
        return self._federation


def _facts(samples: Samples) -> dict[str, Any]:
    """The shape and type of stored inputs, and the scale of images. These facts tell nothing of a sample."""
    if not samples.stored:
        return {}
    found = {}
    for place, leaf in enumerate(leaves(samples.inputs)):
        found[f"inputs {place}"] = f"{str(leaf.dtype).removeprefix('torch.')} {list(leaf.shape[1:])}"
        if leaf.is_floating_point() and leaf.ndim == 4:
            low, high = float(leaf.min()), float(leaf.max())
            found[f"scale of images {place}"] = "any" if low < 0 or high > 255 else "0 to 1" if high <= 1 else "0 to 255"
    return found


def _with_shares_of(samples: Samples, classes: Tensor, seed: int) -> Samples:
    """The most samples whose classes have the same shares as in ``classes``; which samples of a class stay is random."""
    length = 1 + int(torch.cat([classes, samples.labels]).max())
    wanted, available = (labels.bincount(minlength=length).numpy() for labels in (classes, samples.labels))
    scale = (available[wanted > 0] / wanted[wanted > 0]).min()
    # The small number keeps a product like 500 * (1 / 500) from falling just under the integer that it is.
    sizes = np.maximum(wanted > 0, np.floor(wanted * scale + 1e-6)).astype(np.int64)
    order = np.random.default_rng([seed, 2]).permutation(len(samples))
    targets = samples.labels.numpy()[order]
    return samples.subset(np.sort(np.concatenate([order[targets == label][:size] for label, size in enumerate(sizes)])))


def _hold_out(partition: Partition, fractions: tuple[float, float], seed: int) -> tuple[Partition, Partition, Partition]:
    """Split every client's samples at random into (training, test, validation) parts.

    A held-out part has at least one sample if the client can spare it: a client's last sample always trains.
    """
    sizes = partition.sizes
    if not any(fractions):
        nobody = Partition(np.empty(0, np.int64), np.zeros(partition.num_clients + 1, np.int64))
        return partition, nobody, nobody
    spare = np.maximum(0, sizes - 1)
    test, val = (np.maximum(np.rint(sizes * fraction), float(fraction > 0)).astype(np.int64) for fraction in fractions)
    test = np.minimum(test, spare)
    val = np.minimum(val, spare - test)
    # Each sample's place in a random order of its client's samples decides where it goes.
    client = np.repeat(np.arange(partition.num_clients), sizes)
    shuffled = np.lexsort((np.random.default_rng([seed, 1]).random(len(client)), client))
    place = np.empty(len(client), np.int64)
    place[shuffled] = np.arange(len(client)) - partition.offsets[:-1][client]
    part = np.where(place < test[client], 1, np.where(place < (test + val)[client], 2, 0))

    def pick(number: int) -> Partition:
        chosen = part == number
        counts = np.bincount(client[chosen], minlength=partition.num_clients)
        return Partition(partition.indices[chosen], np.concatenate([[0], np.cumsum(counts)]))

    return pick(0), pick(1), pick(2)
