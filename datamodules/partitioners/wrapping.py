"""Splits that change the set or the clients of another split: a long tail of classes, and samples that clients mix."""

from dataclasses import dataclass, field, replace

import numpy as np
import torch

from flcog.core.checks import within
from flcog.data import IID, Partition, Partitioner, Samples, partition_by
from flcog.data.partition import seeded_rng
from flcog.datamodules.partitioners.dirichlet import NIIDBench
from flcog.datamodules.partitioners.draws import class_labels, shuffled_classes


@dataclass(frozen=True)
class LongTail(Partitioner):
    """Makes the whole set imbalanced, then splits the remaining samples: class c keeps n_c = n_1 rho^(-(c - 1) / (C - 1))
    samples.

    The samples that stay are random. n_1 is the size of the first class, and no class keeps more than it has: meant for sets
    whose classes are about equally large. CIFAR-10 with rho 20 keeps 5,000 samples of its first class and 250 of its last.

    With ``NIIDBench`` for the split, clients get the very samples that FedDisco's code gives them: from one generator it shuffles
    a class, cuts it, and deals out the rest.

    Cui et al. 2019, https://arxiv.org/abs/1901.05555; FedDisco's globally imbalanced study (rho 1 to 50, then Dirichlet),
    https://arxiv.org/abs/2305.19229.

    Args:
        rho: imbalance ratio, the first class's size over the last's, >= 1; 1 is balanced.
        split: the split of the remaining samples over clients.
    """

    rho: float
    split: Partitioner = field(default_factory=IID)

    def __post_init__(self) -> None:
        within(self, "[1, inf)", "rho", hint="it is the first class's size over the last's")

    def __call__(self, samples: Samples, num_clients: int, seed: int) -> Partition:
        labels = class_labels(samples)
        counts = np.bincount(labels)
        exponents = -np.arange(len(counts)) / max(1, len(counts) - 1)
        # The small number keeps a product like 500 * 10**-2 from falling just under the integer that it is.
        wanted = np.minimum(counts, np.maximum(1, counts[0] * self.rho**exponents + 1e-6).astype(np.int64))
        if isinstance(self.split, NIIDBench):
            return self.split.first_of_classes(labels, wanted, num_clients, seed)
        pools = shuffled_classes(labels, seeded_rng(seed, stream=2))
        kept = np.sort(np.concatenate([pool[:size] for pool, size in zip(pools, wanted, strict=True)]))
        partition = partition_by(self.split, _without_inputs(samples, kept), num_clients, seed)
        return Partition(kept[partition.indices], partition.offsets)


def _without_inputs(samples: Samples, kept: np.ndarray) -> Samples:
    """The samples at ``kept`` as partitioners see them: indices replace the inputs, which may be too large to copy."""
    targets = samples.labels[torch.from_numpy(kept).to(samples.labels.device)]
    return replace(samples, inputs=kept, targets=targets, users=None if samples.users is None else samples.users[kept])


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
