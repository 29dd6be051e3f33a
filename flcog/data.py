"""Samples, their partition over clients, both in one federation, and the base class of data modules."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import lightning as L
import numpy as np
import torch
from torch import Tensor

from flcog.core import checks
from flcog.core.described import Described
from flcog.core.files import replacing
from flcog.core.labels import require_targets
from flcog.core.source import Source
from flcog.core.trees import Tree, first_leaf, leaves, map_leaves, rows

Task = Literal["classification", "multilabel", "regression"]


@dataclass(frozen=True)
class Partition:
    """Which samples belong to which client: ``indices[offsets[k]:offsets[k + 1]]`` are client k's.

    Two arrays, so that a million clients cost what their samples cost.
    """

    indices: np.ndarray
    offsets: np.ndarray

    def __post_init__(self) -> None:
        for name, values in (("indices", self.indices), ("offsets", self.offsets)):
            if values.ndim != 1 or values.dtype.kind not in "iu":
                raise ValueError(f"a partition's {name} are whole numbers [N]; got {values.dtype} of shape {values.shape}")
        if len(self.offsets) < 2:
            raise ValueError("a partition has at least one client, so at least two offsets")
        if self.offsets[0] != 0 or self.offsets[-1] != len(self.indices) or (np.diff(self.offsets) < 0).any():
            raise ValueError("a partition's offsets must rise from 0 to the number of indices")

    @classmethod
    def from_clients(cls, clients: list[np.ndarray]) -> "Partition":
        """A partition from one index array per client."""
        sizes = [len(indices) for indices in clients]
        joined = np.concatenate(clients) if clients else np.zeros(0)
        return cls(joined.astype(np.int64), np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64))

    @classmethod
    def from_assignment(cls, client_of_sample: np.ndarray, num_clients: int) -> "Partition":
        """A partition from each sample's client; samples of client -1 are left out."""
        order = np.argsort(client_of_sample, kind="stable")
        sizes = np.bincount(client_of_sample[client_of_sample >= 0], minlength=num_clients)
        left_out = len(order) - sizes.sum()
        return cls(order[left_out:].astype(np.int64), np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64))

    @property
    def num_clients(self) -> int:
        return len(self.offsets) - 1

    @property
    def sizes(self) -> np.ndarray:
        return np.diff(self.offsets)

    def client(self, k: int) -> np.ndarray:
        """The sample indices of client k (a view)."""
        return self.indices[self.offsets[k] : self.offsets[k + 1]]

    @property
    def hash(self) -> str:
        """Eight hex digits that fix the split, for papers to cite."""
        digest = hashlib.sha256(np.ascontiguousarray(self.offsets, "<i8").tobytes())
        digest.update(np.ascontiguousarray(self.indices, "<i8").tobytes())
        return digest.hexdigest()[:8]

    def save(self, path: str | Path) -> None:
        path = Path(path)
        with replacing(path if path.suffix == ".npz" else path.with_name(f"{path.name}.npz")) as file:
            np.savez_compressed(file, indices=self.indices, offsets=self.offsets)

    @classmethod
    def load(cls, path: str | Path) -> "Partition":
        """The partition in a file that :meth:`save` wrote."""
        try:
            with np.load(path, allow_pickle=False) as arrays:
                partition = cls(arrays["indices"], arrays["offsets"])
            return cls(partition.indices.astype(np.int64), partition.offsets.astype(np.int64))
        except Exception as error:  # a damaged archive raises nearly every kind
            raise ValueError(f"{path} is not a saved partition (.npz with 'indices' and 'offsets'): {error}") from error


@dataclass(frozen=True)
class Samples:
    """A set of samples held as arrays. Images are stored channels-last, [N, H, W, C], as decoders write them and CPUs like them.

    Inputs and targets may also be dicts, tuples or lists of such (a transformer's ``input_ids`` and ``attention_mask``). A network
    gets a dict by name where its forward has parameters of all these names, any other inputs as its one argument.

    Args:
        inputs: a tensor (moved to the device once), a memory-mapped array (read from disk batch by batch), or a
            :class:`flcog.core.source.Source`, which makes them when they are asked for.
        targets: class indices [N] (int64), multi-hot rows [N, C] (float32) or values [N] (float32). Of several, the first is what
            splits by label and label statistics go by.
        users: a natural owner for each sample, where the data set has one.
    """

    inputs: Tree
    targets: Tree
    users: np.ndarray | None = None

    def __post_init__(self) -> None:
        for what, tree in (("inputs", self.inputs), ("targets", self.targets)):
            counts = [len(leaf) for leaf in leaves(tree)]
            if len(set(counts)) != 1:
                raise ValueError(
                    f"the {what} have {' and '.join(map(str, counts)) or 'no'} rows: every part needs one per sample"
                )
        if len(self) != len(self.labels):
            raise ValueError(f"{len(self)} inputs but {len(self.labels)} targets: a set needs one target per input")
        if len(self) == 0:
            raise ValueError("the set has no samples: check the path, the split's name and any subset you asked for")

    def __len__(self) -> int:
        return len(first_leaf(self.inputs))

    @property
    def labels(self) -> Tensor:
        """The targets, or the first of several: what splits by label and label statistics go by."""
        labels: Tensor = first_leaf(self.targets)
        return labels

    @property
    def stored(self) -> bool:
        """Whether the inputs are tensors in memory, which are looked up on the device they live on."""
        return all(isinstance(leaf, Tensor) for leaf in leaves(self.inputs))

    def gather(self, indices: Tensor, keys: np.ndarray | None = None) -> Tree:
        """The stored inputs at ``indices``, on the device they live on (memory-mapped ones on the CPU).

        Args:
            indices: which.
            keys: the randomness of a source, one key per sample; None for what it always gives.
        """
        if isinstance(self.inputs, Source):
            return self.inputs.read(indices.cpu().numpy(), keys)
        return map_leaves(lambda leaf: _gathered(leaf, indices), self.inputs)

    def to(self, device: torch.device) -> "Samples":
        def moved(leaf: Any) -> Any:
            return leaf.to(device) if isinstance(leaf, Tensor) else leaf

        return replace(self, inputs=map_leaves(moved, self.inputs), targets=map_leaves(moved, self.targets))


def _gathered(leaf: Any, indices: Tensor) -> Tensor:
    if isinstance(leaf, Tensor):
        return leaf.index_select(0, indices.to(leaf.device))
    return torch.from_numpy(leaf[indices.cpu().numpy()])


Augment = Callable[[Tree, np.ndarray], Tree]
"""``augment(inputs [B, H, W, C] as stored, keys uint64 [B]) -> inputs``: one key per sample is all the randomness it gets."""


@dataclass(frozen=True, repr=False)
class Federation(Described):
    """What a run trains and evaluates on. A method's ``prepare_data`` may put a changed copy (``dataclasses.replace``) in its place.

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
    class_names: tuple[str, ...] | None = None
    whole: Partition | None = None
    """The split as the partitioner made it, before parts were held out; None if it is ``partition``."""

    def _described(self) -> Iterator[tuple[str, str]]:
        sizes = self.partition.sizes
        yield "task", self.task if self.task == "regression" else f"{self.task}, {self.num_classes:,} classes"
        yield "clients", f"{self.num_clients:,}, with {sizes.min():,} to {sizes.max():,} samples"
        yield "training", f"{sizes.sum():,} of {len(self.train):,} samples, partition {self.split.hash}"
        for name, samples, part in (("validation", self.val, self.client_val), ("test", self.test, self.client_test)):
            own = "" if part is None else f"{len(part.indices):,} held out by the clients"
            central = "" if samples is None else f"{len(samples):,} samples"
            yield name, ", ".join(filter(None, (central, own))) or "none"

    @property
    def num_clients(self) -> int:
        return self.partition.num_clients

    @property
    def sets(self) -> dict[str, Samples]:
        """The sets that there are, by what users call them."""
        sets = {"training": self.train, "validation": self.val, "test": self.test}
        return {name: samples for name, samples in sets.items() if samples is not None}

    @property
    def needs_keys(self) -> bool:
        """Whether reading a training sample takes randomness: a key for each sample, round and client."""
        return self.augment is not None or isinstance(self.train.inputs, Source)

    @property
    def split(self) -> Partition:
        """What papers cite and ``Saved`` loads: the partition with what is held out of it."""
        return self.whole or self.partition

    def load(self, samples: Samples, indices: Tensor, device: torch.device, keys: np.ndarray | None = None) -> tuple[Tree, Tree]:
        """Model-ready inputs and targets at ``indices``; augmented where ``keys`` (one per sample) are given."""
        return self.ready(samples, samples.gather(indices, keys), indices, device, keys)

    def ready(
        self, samples: Samples, gathered: Tree, indices: Tensor, device: torch.device, keys: np.ndarray | None = None
    ) -> tuple[Tree, Tree]:
        """The same where the inputs have been gathered."""
        inputs = map_leaves(lambda leaf: leaf.to(device, non_blocking=True), gathered)
        if self.augment is not None and keys is not None:
            inputs = self.augment(inputs, keys)
        targets = map_leaves(lambda leaf: leaf.index_select(0, indices.to(leaf.device)).to(device), samples.targets)
        return self.preprocess(inputs), targets

    def label_counts(self, k: int) -> Tensor:
        """How many of client k's training samples carry each label (float64 [num_classes]); regression counts bins of the target.

        ``flcog.label_statistics.label_table`` counts those of all clients at once.
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

        They are quantiles over the whole training set, hence over all clients' targets, as if known beforehand: no exchange
        provides them, and none is counted. Every bin holds a sample: repeated values stay in one, so tied targets have fewer bins
        than ``num_classes``, the same as the splits by label see.
        """
        quantiles = torch.linspace(0, 1, self.num_classes + 1, dtype=torch.float64)[1:-1]
        # torch.quantile refuses more than 16 million values; numpy does not.
        edges = torch.from_numpy(np.quantile(self.values.cpu().double().numpy(), quantiles.numpy())).to(self.train.labels)
        return edges[torch.bucketize(self.values.contiguous(), edges).unique()[:-1]]


@dataclass(frozen=True)
class Exchange:
    """What a method's exchange of data before round 1 results in. A method derives a class of it to leave more for its hooks and observers.

    Args:
        federation: the data from now on. Where its clients are fewer than those of its ``split``, each of them does in a round the
            work of those that it was made of.
        bytes_sent: by all clients together, up and down; None where nothing was exchanged.
        digest: fixes the new data where the settings alone do not; a checkpoint keeps it, so that no run goes on with other data.
        folder: where what was exchanged is kept, if it is.
    """

    federation: Federation
    bytes_sent: tuple[int, int] | None = None
    digest: str | None = None
    folder: Path | None = None


class Preprocess:
    """Turns stored inputs into model inputs: uint8 to [0, 1], per-channel normalisation, channels first (in channels-last memory).

    Args:
        mean, std: per channel, or one for all, on the [0, 1] scale; None leaves values as they are (after the uint8 scaling).
    """

    def __init__(self, mean: tuple[float, ...] | None = None, std: tuple[float, ...] | None = None) -> None:
        if (mean is None) != (std is None) or (mean is not None and std is not None and len(mean) != len(std)):
            raise ValueError(f"mean and std come together, one value per channel; got mean={mean}, std={std}")
        if std is not None and min(std) <= 0:
            raise ValueError(f"std must be positive; got {std}")
        self.mean, self.std = mean, std
        self._affine: dict[tuple[torch.device, bool], tuple[Tensor, Tensor]] = {}

    def __call__(self, inputs: Tree) -> Tree:
        return map_leaves(self._ready, inputs)

    def _ready(self, inputs: Tensor) -> Tensor:
        if not inputs.is_floating_point() and inputs.dtype != torch.uint8:
            return inputs  # token ids
        if self.mean is not None and len(self.mean) not in (1, inputs.shape[-1]):
            raise ValueError(
                f"mean and std have {len(self.mean)} values, and samples of shape {tuple(inputs.shape[1:])} have {inputs.shape[-1]} "
                "channels: give one value per channel, or one for all"
            )
        outputs = inputs.to(torch.get_default_dtype())
        if inputs.dtype == torch.uint8 or self.mean is not None:
            scale, shift = self._scale_and_shift(inputs)
            # In place on our own copy: one pass less over the batch. `inputs` itself is kept when it was float already.
            outputs = (outputs * scale if outputs is inputs else outputs.mul_(scale)).add_(shift)
        return outputs.permute(0, 3, 1, 2) if outputs.ndim == 4 else outputs

    def _scale_and_shift(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        key = (inputs.device, inputs.dtype == torch.uint8)
        if key not in self._affine:
            mean, std = torch.tensor(self.mean or (0.0,)), torch.tensor(self.std or (1.0,))
            unit = 255.0 if inputs.dtype == torch.uint8 else 1.0
            self._affine[key] = ((1 / (std * unit)).to(inputs.device), (-mean / std).to(inputs.device))
        return self._affine[key]


@dataclass(frozen=True)
class Splits:
    """What a data set's files hold, before anything is given to clients."""

    train: Samples
    test: Samples | None = None
    val: Samples | None = None


class Partitioner(ABC):
    """Decides which samples belong to which client; ``flcog.datamodules`` has the splits of the literature.

    A partitioner is a frozen dataclass of its hyper-parameters and a pure function of the samples' targets and users and of a
    seed. It never reads the inputs, which may be the size of a disk; a partitioner that wraps another may hand it indices instead.
    """

    @abstractmethod
    def __call__(self, samples: Samples, num_clients: int, seed: int) -> Partition:
        """Give each sample to one client, or to none where the split says so.

        Args:
            samples: the training set; only ``labels`` and ``users`` are read.
            num_clients: how many clients to make. Splits whose clients the data decide say so, and ignore it.
            seed: fixes the split, >= 0. Equal arguments give equal partitions, whatever else has drawn random numbers.
        """


@dataclass(frozen=True)
class IID(Partitioner):
    """Every client gets an equally large random share of all samples; sizes differ by one at most."""

    def __call__(self, samples: Samples, num_clients: int, seed: int) -> Partition:
        if not 1 <= num_clients <= len(samples):
            raise ValueError(f"{num_clients} clients cannot share {len(samples)} samples: each needs one; set num_clients")
        rng = np.random.Generator(np.random.PCG64(seed))
        return Partition.from_assignment(rng.permutation(np.arange(len(samples)) % num_clients), num_clients)


class FederatedDataModule(Described, L.LightningDataModule):
    """A data set, its split over clients, and how batches are made of it.

    A data set's own file implements :meth:`load` (and :meth:`prepare_data` where it downloads or decodes) and names its ``task``,
    ``num_classes`` and normalisation; everything else is here.

    Args:
        num_clients: how many clients the training set is divided over.
        partitioner: how; see ``flcog.datamodules`` for the splits of the literature. IID by default.
        batch_size: samples per local step.
        eval_batch_size: samples per evaluation step.
        partition_seed: fixes the split; independent of the trainer's seed, so that seeds can be compared on one split.
        client_test: fraction of each client's samples held out to measure the client's own accuracy; or ``reweighted`` to measure it
            on the whole test set, every class weighted by its share of the client's samples, which takes none from training
            (classification; FedCOG's "personalized test dataset", Figure 2 and Table 9, https://arxiv.org/abs/2312.05966). That costs
            an evaluation of each client's own model, where a method keeps such.
        client_val: fraction of each client's samples held out for the client's own choices.
        drop_last: drop the last, smaller batch of each local epoch (a client smaller than one batch still trains on what it has).
        test_like_clients: keep so many test samples of each class that its share is that of all clients' samples together, as
            where FedDisco's global distribution is not uniform (Table 5, https://arxiv.org/abs/2305.19229).
    """

    task: Task = "classification"
    num_classes: int
    class_names: tuple[str, ...] | None = None
    notes: tuple[str, ...] = ()
    """Choices made on the user's behalf, for the run's summary."""

    def __init__(
        self,
        num_clients: int = 10,
        partitioner: Partitioner | None = None,
        batch_size: int = 64,
        eval_batch_size: int = 1000,
        partition_seed: int = 0,
        client_test: float | Literal["reweighted"] = 0.0,
        client_val: float = 0.0,
        drop_last: bool = False,
        test_like_clients: bool = False,
    ) -> None:
        super().__init__()
        checks.at_least(self, 1, num_clients=num_clients, batch_size=batch_size, eval_batch_size=eval_batch_size)
        self.reweighted_test = client_test == "reweighted"
        held_out = client_test if not isinstance(client_test, str) else 0.0 if self.reweighted_test else -1.0
        if held_out < 0 or client_val < 0 or held_out + client_val >= 1:
            raise ValueError(
                "client_test and client_val are fractions that leave something to train on, or client_test is reweighted; got "
                f"{client_test} and {client_val}"
            )
        self.num_clients, self.partitioner, self.partition_seed = num_clients, partitioner, partition_seed
        self.batch_size, self.eval_batch_size, self.drop_last = batch_size, eval_batch_size, drop_last
        self.client_test, self.client_val, self.test_like_clients = held_out, client_val, test_like_clients
        checks.seed(self, "partition_seed")
        self._federation: Federation | None = None

    def load(self) -> Splits:
        """The data set's splits, read from its files."""
        raise NotImplementedError(f"{type(self).__name__} must implement load()")

    def preprocess(self) -> Callable[[Tree], Tree]:
        """From stored inputs to model inputs."""
        return Preprocess()

    def augment(self) -> Augment | None:
        """Random changes of training inputs, or None."""
        return None

    def setup(self, stage: str | None = None) -> None:
        if self._federation is not None:
            return
        splits = self.load()
        for part, samples in (("training", splits.train), ("validation", splits.val), ("test", splits.test)):
            if samples is not None:
                require_targets(samples.labels, self.task, self.num_classes, f"{type(self).__name__}: the {part} set")
        partition = (self.partitioner or IID())(splits.train, self.num_clients, self.partition_seed)
        whole = partition
        partition, client_test, client_val = _hold_out(whole, (self.client_test, self.client_val), self.partition_seed)
        empty = np.flatnonzero(partition.sizes == 0)
        if len(empty):
            raise ValueError(
                f"{len(empty)} of {partition.num_clients} clients have no training samples (the first is client {empty[0]}): "
                "use fewer clients, a larger beta, or a partitioner with a minimum size"
            )
        test = splits.test
        if self.reweighted_test and (test is None or self.task != "classification"):
            what = "no test set" if test is None else f"the task {self.task}"
            raise ValueError(
                f"client_test=reweighted weighs the classes of a test set; {type(self).__name__} has {what}: give a fraction"
            )
        if self.test_like_clients:
            if test is None or self.task != "classification":
                what = "no test set" if test is None else f"the task {self.task}"
                raise ValueError(
                    f"test_like_clients goes by the classes of a test set; {type(self).__name__} has {what}: leave it out"
                )
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
            class_names=self.class_names,
            whole=whole if self.client_test or self.client_val else None,
        )

    def _described(self) -> Iterator[tuple[str, str]]:
        yield "split", f"{self.num_clients:,} clients by {self.partitioner or IID()}, seed {self.partition_seed}"
        yield "batches", f"of {self.batch_size:,}"
        if self._federation is None:
            yield "data", "not read yet"
        else:
            yield from self._federation._described()

    @property
    def federation(self) -> Federation:
        """The loaded data, split over clients."""
        if self._federation is None:
            self.prepare_data()
            self.setup()
        assert self._federation is not None
        return self._federation


def _with_shares_of(samples: Samples, classes: Tensor, seed: int) -> Samples:
    """The most samples whose classes have the same shares as in ``classes``; which samples of a class stay is random."""
    length = 1 + int(torch.cat([classes, samples.labels]).max())
    wanted, available = (labels.bincount(minlength=length).numpy() for labels in (classes, samples.labels))
    missing = np.flatnonzero((wanted > 0) & (available == 0))
    if len(missing):
        raise ValueError(
            f"test_like_clients: clients have samples of class {missing[0]}, and the test set has none: leave it out"
        )
    scale = (available[wanted > 0] / wanted[wanted > 0]).min()
    # The small number keeps a product like 500 * (1 / 500) from falling just under the integer that it is.
    sizes = np.maximum(wanted > 0, np.floor(wanted * scale + 1e-6)).astype(np.int64)
    order = np.random.default_rng([seed, 2]).permutation(len(samples))
    targets = samples.labels.numpy()[order]
    kept = torch.from_numpy(np.sort(np.concatenate([order[targets == label][:size] for label, size in enumerate(sizes)])))
    users = samples.users[kept.numpy()] if samples.users is not None else None
    return Samples(samples.gather(kept), rows(samples.targets, kept), users)


def _hold_out(partition: Partition, fractions: tuple[float, float], seed: int) -> tuple[Partition, Partition, Partition]:
    """Split every client's samples at random into (training, test, validation) parts.

    A held-out part has at least one sample if the client can spare it: a client's last sample always trains.
    """
    sizes = partition.sizes
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
