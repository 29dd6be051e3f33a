"""Pools a part of all clients' samples and redistributes it at random."""

from dataclasses import dataclass

import numpy as np

from flcog.core.checks import within
from flcog.data import Partition, Partitioner, Samples, partition_by
from flcog.datamodules.partitioners.draws import seeded_rng


@dataclass(frozen=True)
class Shuffled(Partitioner):
    """Mixes a part of all clients' data: each gives round(p n_k) random samples to a pool and gets as many back at random.

    Client k's distribution becomes (1 - p) D_k + p D; sizes stay as they are.

    Li et al. 2024 (Fedssyn), section 2 and the MNIST study, https://arxiv.org/abs/2306.13263: gradient dissimilarity falls with
    (1 - p)^2.

    Args:
        p: fraction of each client's samples that is mixed, 0 to 1.
        split: the split whose clients are mixed.
    """

    p: float
    split: Partitioner

    def __post_init__(self) -> None:
        within(self, "[0, 1]", "p", hint="it is the fraction of a client's samples that is mixed")

    def __call__(self, samples: Samples, num_clients: int, seed: int) -> Partition:
        partition = partition_by(self.split, samples, num_clients, seed)
        rng = seeded_rng(seed, stream=3)
        sizes = partition.sizes
        client = np.repeat(np.arange(partition.num_clients), sizes)
        # Random order within each client: the sort is by client first, and clients lie one after another already.
        order = np.lexsort((rng.random(len(client)), client))
        position = np.arange(len(client)) - partition.offsets[client]
        mixed = order[position < np.rint(self.p * sizes).astype(np.int64)[client]]
        client[mixed] = rng.permutation(client[mixed])
        owner = np.full(len(samples), -1)
        owner[partition.indices] = client
        return Partition.from_assignment(owner, partition.num_clients)
