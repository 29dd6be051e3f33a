"""Each class cut over the clients by Dirichlet shares: the Dirichlet split of most papers."""

from dataclasses import dataclass

import numpy as np

from flcog.core.checks import at_least, positive_and_finite
from flcog.data import Partition, Partitioner, Samples
from flcog.datamodules.partitioners.draws import checked_min_size, deal, draw_class_cuts, require_a_sample_each, seeded_rng
from flcog.datamodules.partitioners.labels import class_labels


@dataclass(frozen=True)
class Dirichlet(Partitioner):
    """Each class is cut over the clients by shares drawn from a Dirichlet distribution: small ``beta``, few classes per client.

    For each class c in turn, with N samples and K clients,

        p_c ~ Dir_K(beta, ..., beta)   over the clients that hold fewer than N / K samples so far
        client k receives the next p_kc n_c of the n_c samples of class c

    NIID-Bench writes the cap as p_kc [size_k < N / K], renormalised. Drawing only over the open clients gives the same
    distribution (part of a Dirichlet vector, renormalised, is a Dirichlet vector) and cannot divide 0 by 0. The whole split is
    redrawn until its smallest client has ``min_size`` samples.

    Yurochkin et al. 2019, https://arxiv.org/abs/1905.12022 (no cap); Li et al. 2022 (NIID-Bench), https://arxiv.org/abs/2102.02079
    (cap). This is NIID-1 of FedCOG (beta 0.1) and of FedDisco (beta 0.5; 5 for HAM10000 and CIFAR-100).

    Args:
        beta: concentration, > 0; the papers go from 0.01 (a class or two per client) to 10 (almost IID).
        capped: close clients that have reached the average size. Without it client sizes vary far more.
        min_size: samples that the smallest client must have, >= 0. By default 10, as in the papers, if clients average 100 or
            more, and otherwise 1.
        max_tries: how often the split is drawn before giving up, >= 1.
        top_up: if no draw succeeds, move samples of the largest client's commonest class to clients that are too small, instead
            of raising an error. The split then no longer follows the papers' distribution. But it is the only way to split, for
            example, with beta 0.1 over 1,000 clients of 50, where only one draw in ten thousand leaves no client empty.
    """

    beta: float
    capped: bool = True
    min_size: int | None = None
    max_tries: int = 1000
    top_up: bool = False

    def __post_init__(self) -> None:
        positive_and_finite(self, "beta")
        at_least(self, 0, "min_size")
        at_least(self, 1, "max_tries")

    def __call__(self, samples: Samples, num_clients: int, seed: int) -> Partition:
        require_a_sample_each(len(samples), num_clients)
        labels, rng = class_labels(samples), seeded_rng(seed)
        min_size = checked_min_size(self.min_size, len(samples), num_clients)
        class_sizes = np.bincount(labels)
        counts, short = draw_class_cuts(class_sizes, num_clients, self.beta, min_size, self.max_tries, rng, capped=self.capped)
        if short and not self.top_up:
            raise ValueError(
                f"Dirichlet(beta={self.beta}) over {num_clients} clients and {len(samples)} samples left {short} or more clients "
                f"with fewer than {min_size} samples in every draw, of up to {self.max_tries}: raise beta or max_tries, lower "
                "min_size or num_clients, set top_up, or use ClientDirichlet, whose clients all have the same size"
            )
        return deal(labels, _topped_up(counts, min_size), rng)


def _topped_up(counts: np.ndarray, min_size: int) -> np.ndarray:
    """``counts`` with every client raised to ``min_size`` by samples of the largest client's commonest class."""
    counts, sizes = counts.copy(), counts.sum(axis=1)
    for client in np.flatnonzero(sizes < min_size):
        while sizes[client] < min_size:
            donor = sizes.argmax()
            label = counts[donor].argmax()
            moved = min(min_size - sizes[client], sizes[donor] - min_size, counts[donor, label])
            counts[donor, label] -= moved
            counts[client, label] += moved
            sizes[donor] -= moved
            sizes[client] += moved
    return counts
