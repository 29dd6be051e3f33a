"""FedDisco's split into clients with a few classes and clients with all classes."""

from dataclasses import dataclass

import numpy as np

from flcog.core.checks import at_least
from flcog.data import Partition, Partitioner, Samples
from flcog.datamodules.partitioners.draws import deal, require_a_sample_each, seeded_rng
from flcog.datamodules.partitioners.labels import class_labels


@dataclass(frozen=True)
class BiasedUnbiased(Partitioner):
    """Some clients have a few classes, the others have all classes; all clients have the same size.

    With s_c = floor(n_c / K) and G = C / ``labels_per_client`` label groups, biased client k takes G s_c samples of each class c
    of group k mod G, and an unbiased client s_c samples of every class. Biased clients come first. On CIFAR-10, 5 + 1 clients
    hold 8,330 samples each, 50 + 10 hold 830 and 40 + 10 hold 1,000. The n_c - K s_c samples over are left out.

    This is NIID-2 of FedDisco, https://arxiv.org/abs/2305.19229, where C must divide by 5; and, as ``BiasedUnbiased(4, 1, 2)``,
    its split of AG News, in which 80 % of the clients have 2 of 4 topics.

    Args:
        biased, unbiased: how many clients of each kind, >= 0. ``num_clients`` is their sum, or a multiple that multiplies both.
        labels_per_client: classes of a biased client, a divisor of C; a fifth of them by default. The number of biased clients
            must be a multiple of G.
    """

    biased: int = 5
    unbiased: int = 1
    labels_per_client: int | None = None

    def __post_init__(self) -> None:
        at_least(self, 0, "biased", "unbiased")
        at_least(self, 1, "labels_per_client")
        if self.biased + self.unbiased == 0:
            raise ValueError("biased and unbiased are both 0: there would be no clients")

    def __call__(self, samples: Samples, num_clients: int, seed: int) -> Partition:
        require_a_sample_each(len(samples), num_clients)
        if num_clients % (self.biased + self.unbiased):
            raise ValueError(
                f"BiasedUnbiased(biased={self.biased}, unbiased={self.unbiased}) makes {self.biased + self.unbiased} clients or "
                f"a multiple of that: change num_clients (got {num_clients}), biased or unbiased"
            )
        labels = class_labels(samples)
        class_sizes = np.bincount(labels)
        num_classes, num_biased = len(class_sizes), self.biased * num_clients // (self.biased + self.unbiased)
        width = self.labels_per_client or max(1, num_classes // 5)
        groups = num_classes // width
        if groups * width != num_classes or (self.labels_per_client is None and groups != 5):
            raise ValueError(
                f"{num_classes} classes do not fall into {'equal groups' if self.labels_per_client else 'five equal groups'} of "
                f"{width} labels: set labels_per_client to a divisor of the number of classes"
            )
        if num_biased % groups:
            raise ValueError(
                f"{num_biased} biased clients cannot share {groups} groups of {width} labels evenly: make biased a multiple of "
                f"{groups}"
            )
        unit = class_sizes // num_clients
        if unit.min() == 0:
            raise ValueError(
                f"class {unit.argmin()} has {class_sizes.min()} samples, fewer than the {num_clients} clients: lower num_clients"
            )
        counts = np.tile(unit, (num_clients, 1))
        group_of_label = np.arange(num_classes) // width
        own = np.arange(num_biased)[:, None] % groups == group_of_label
        counts[:num_biased] = np.where(own, groups * unit, 0)
        return deal(labels, counts, seeded_rng(seed))
