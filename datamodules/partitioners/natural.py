"""Splits that exist already: one client per user of the data set, and a partition read from a file."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from flcog.core.checks import at_least
from flcog.data import Partition, Partitioner, Samples
from flcog.datamodules.partitioners.draws import seeded_rng


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


@dataclass(frozen=True)
class Saved(Partitioner):
    """A partition from a file that ``Partition.save`` wrote, for runs on a split that a paper cites.

    The file determines the number of clients, so neither ``num_clients`` nor the seed is used.

    Args:
        path: the ``.npz`` file.
        hash: the partition's hash; if it is given, the file must have it.
    """

    path: str | Path
    hash: str | None = None

    def __call__(self, samples: Samples, num_clients: int, seed: int) -> Partition:
        partition = Partition.load(self.path)
        if self.hash is not None and partition.hash != self.hash:
            raise ValueError(f"the partition in {self.path} has hash {partition.hash}, not {self.hash}: it is another split")
        if len(partition.indices) and not (partition.indices.min() >= 0 and partition.indices.max() < len(samples)):
            raise ValueError(
                f"the partition in {self.path} names samples up to {partition.indices.max()}, and the set has {len(samples)}: it "
                "was made for another data set"
            )
        return partition
