"""Partition: the samples of each client. Partitioner: the base class of splits."""

import hashlib
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.random import PCG64, Generator

from flcog.core.checks import at_least
from flcog.core.files import arrays_in, replacing
from flcog.data.samples import Samples


@dataclass(frozen=True)
class Partition:
    """The samples of each client: client k has ``indices[offsets[k]:offsets[k + 1]]``.

    A partition is two arrays, so that its size depends on the number of samples, even for a million clients.
    """

    indices: np.ndarray
    offsets: np.ndarray

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
        return cls(order[left_out:].astype(np.int64, copy=False), np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64))

    @property
    def num_clients(self) -> int:
        return len(self.offsets) - 1

    @property
    def sizes(self) -> np.ndarray:
        return np.diff(self.offsets)

    def client(self, k: int) -> np.ndarray:
        """The sample indices of client k (a view)."""
        return self.indices[self.offsets[k] : self.offsets[k + 1]]

    def between(self, first: int, end: int) -> "Partition":
        """The clients from ``first`` up to ``end``, which are numbered from 0 again."""
        offsets = self.offsets[first : end + 1]
        return Partition(self.indices[offsets[0] : offsets[-1]], offsets - offsets[0])

    @property
    def hash(self) -> str:
        """Eight hex digits that identify the split, for papers to cite."""
        digest = hashlib.sha256(np.ascontiguousarray(self.offsets, "<i8").data)
        digest.update(np.ascontiguousarray(self.indices, "<i8").data)
        return digest.hexdigest()[:8]

    def save(self, path: str | Path) -> None:
        path = Path(path)
        with replacing(path if path.suffix == ".npz" else path.with_name(f"{path.name}.npz")) as file:
            np.savez_compressed(file, indices=self.indices, offsets=self.offsets)

    @classmethod
    def load(cls, path: str | Path) -> "Partition":
        """The partition in a file that :meth:`save` wrote."""
        try:
            with arrays_in(path) as arrays:
                return cls(arrays["indices"].astype(np.int64), arrays["offsets"].astype(np.int64))
        except Exception as error:  # a damaged archive raises nearly every kind
            raise ValueError(f"{path} is not a saved partition (.npz with 'indices' and 'offsets'): {error}") from error


def partition_by(partitioner: Any, samples: Samples, num_clients: int, seed: int) -> Partition:
    """Call a partitioner, or a function with the same arguments, and check its result: a partition or a list of sample indices."""
    if not callable(partitioner):
        raise ValueError(
            f"partitioner must be an object, such as flcog.datamodules.Dirichlet(0.1), or a function; got {partitioner!r}"
        )
    made, name = partitioner(samples, num_clients, seed), getattr(partitioner, "__name__", type(partitioner).__name__)
    if isinstance(made, Partition):
        return made
    if not isinstance(made, list | tuple) or not made:
        raise ValueError(
            f"{name} returned {made!r:.80}: return a list with one array of sample indices for each client, or a Partition"
        )
    partition = Partition.from_clients([np.asarray(indices) for indices in made])
    given, times = np.unique(partition.indices, return_counts=True)
    if len(wrong := given[(given < 0) | (given >= len(samples)) | (times > 1)]):
        raise ValueError(f"{name} gives away sample {wrong[0]}: indices go from 0 to {len(samples) - 1}, each to one client")
    return partition


def seeded_rng(seed: int, stream: int = 0) -> Generator:
    """Random numbers that the seed fixes, the same on every machine.

    Streams keep a split that wraps another from drawing the same numbers (stream 1 is the held-out parts').
    """
    return Generator(PCG64([seed, stream] if stream else seed))


class Partitioner(ABC):
    """Divides the samples over the clients. ``flcog.datamodules`` has the splits of the literature.

    A partitioner is a frozen dataclass of its hyper-parameters and a pure function of the samples' targets and users and of a
    seed. It never reads the inputs, which may be the size of a disk; a partitioner that wraps another may hand it indices instead.
    """

    @abstractmethod
    def __call__(self, samples: Samples, num_clients: int, seed: int) -> Partition:
        """Give each sample to one client or leave it out. May also return a list with each client's sample indices.

        Args:
            samples: the training set; only ``labels`` and ``users`` are read.
            num_clients: the number of clients. Splits with a number of clients from the data ignore it.
            seed: the seed of the split, >= 0. Equal arguments give equal partitions: no other random stream is used.
        """


@dataclass(frozen=True)
class IID(Partitioner):
    """Every client gets an equally large random share of all samples; sizes differ by one at most."""

    def __call__(self, samples: Samples, num_clients: int, seed: int) -> Partition:
        rng = seeded_rng(seed)
        kind = np.int32 if len(samples) < 1 << 31 else np.int64  # half of the memory
        client_of_sample = np.arange(len(samples), dtype=kind) % num_clients
        rng.shuffle(client_of_sample)
        return Partition.from_assignment(client_of_sample, num_clients)


@dataclass(frozen=True)
class Natural(Partitioner):
    """One client per user of the data set: FLAIR's photographers, FEMNIST's writers, the domains of PACS.

    The data determine the number of clients, so ``num_clients`` is not used; ``max_users`` limits them. Clients come in the order
    of their users' names.

    FLAIR, Song et al. 2022, https://arxiv.org/abs/2207.08869 (FedCOG draws 200 of its users); LEAF, Caldas et al. 2018,
    https://arxiv.org/abs/1812.01097 (FEMNIST).

    Args:
        max_users: draw that many users at random, >= 1; None takes all.
        min_samples: leave out users with fewer samples, >= 1.
        clients_per_user: divide each user's samples at random among that many clients, >= 1.
    """

    max_users: int | None = None
    min_samples: int = 1
    clients_per_user: int = 1

    def __post_init__(self) -> None:
        at_least(self, 1, "max_users", "min_samples", "clients_per_user")

    def __call__(self, samples: Samples, num_clients: int, seed: int) -> Partition:
        if samples.users is None:
            raise ValueError("Natural needs to know each sample's user, and this data set has none: use another partitioner")
        user, sizes = np.unique(samples.users, return_inverse=True, return_counts=True)[1:]
        chosen = np.flatnonzero(sizes >= self.min_samples)
        if len(chosen) < (self.max_users or 1):
            raise ValueError(
                f"{len(chosen)} of {len(sizes)} users have at least {self.min_samples} samples, and {self.max_users or 'some'} "
                "are wanted: lower max_users or min_samples"
            )
        if self.max_users is not None:
            chosen = np.sort(seeded_rng(seed).choice(chosen, self.max_users, replace=False))
        client_of_user, parts = np.full(len(sizes), -1), self.clients_per_user
        client_of_user[chosen] = np.arange(len(chosen)) * parts
        assignment = client_of_user[user]
        if parts > 1:
            rng = seeded_rng(seed, stream=2)
            for first in range(0, len(chosen) * parts, parts):
                own = rng.permutation(np.flatnonzero(assignment == first))
                assignment[own] += np.arange(len(own)) % parts
        return Partition.from_assignment(assignment, len(chosen) * parts)
