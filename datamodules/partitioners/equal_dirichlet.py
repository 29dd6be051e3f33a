"""Fedssyn's Dirichlet split into clients of equal size."""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from flcog.core.checks import at_least, positive_and_finite
from flcog.data import Partition, Partitioner, Samples
from flcog.datamodules.partitioners.draws import draw_class_cuts, even_sizes, require_a_sample_each, seeded_rng
from flcog.datamodules.partitioners.labels import class_labels


@dataclass(frozen=True)
class EqualDirichlet(Partitioner):
    """A capped Dirichlet split, concatenated client by client and cut again into equal parts: Fedssyn's split.

    Clients are handled in groups of ``group_size``, each with its equal share of the shuffled samples; in each group the split of
    ``Dirichlet`` is redrawn until the smallest client has half the average. The second cut gives every client N / K samples (up
    to one), and neighbours share a class at each cut.

    Li et al. 2024 (Fedssyn), https://arxiv.org/abs/2306.13263, after FedDF, https://arxiv.org/abs/2006.07242. The authors' code
    splits the first 45,000 images of CIFAR.

    Args:
        beta: concentration, > 0 (Fedssyn: 0.01 and 0.1).
        group_size: clients that share one Dirichlet draw, >= 1; None takes all clients at once. Fedssyn: none for 10 clients; for
            40, 20 (beta 0.1) or 10 (beta 0.01); for 100, 10 on CIFAR-10, and on CIFAR-100 20 for beta 0.01, else none.
        max_tries: how often a group is drawn before giving up, >= 1.
    """

    beta: float
    group_size: int | None = None
    max_tries: int = 100_000

    def __post_init__(self) -> None:
        positive_and_finite(self, "beta")
        at_least(self, 1, "group_size", "max_tries")

    def __call__(self, samples: Samples, num_clients: int, seed: int) -> Partition:
        require_a_sample_each(len(samples), num_clients)
        labels, rng = class_labels(samples), seeded_rng(seed)
        order = rng.permutation(len(samples))
        first_clients = [*range(0, num_clients, self.group_size or num_clients), num_clients]
        line = []
        for first, last in pairwise(first_clients):
            clients = last - first
            members = order[first * len(order) // num_clients : last * len(order) // num_clients]
            members = members[np.argsort(labels[members], kind="stable")]
            class_sizes, min_size = np.bincount(labels[members]), len(members) // (2 * clients)
            counts, short = draw_class_cuts(class_sizes, clients, self.beta, min_size, self.max_tries, rng, capped=True)
            if short:
                raise ValueError(
                    f"EqualDirichlet(beta={self.beta}) found no draw in which each of {clients} clients gets half of the "
                    f"average of {len(members) / clients:.0f} samples, in up to {self.max_tries} draws: raise beta, or "
                    "set group_size to at most the number of classes"
                )
            owner = np.repeat(np.tile(np.arange(clients), len(class_sizes)), counts.T.ravel())
            line.append(members[np.argsort(owner, kind="stable")])
        client_of_sample = np.empty(len(samples), dtype=np.int64)
        client_of_sample[np.concatenate(line)] = np.repeat(np.arange(num_clients), even_sizes(len(samples), num_clients))
        return Partition.from_assignment(client_of_sample, num_clients)
