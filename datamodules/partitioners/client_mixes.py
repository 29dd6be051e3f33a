"""Each client draws its own mix of classes from a Dirichlet distribution, with equal or given client sizes."""

from dataclasses import dataclass

import numpy as np
from numpy.random import Generator

from flcog.core.checks import all_at_least, positive_and_finite, within
from flcog.data import Partition, Partitioner, Samples
from flcog.data.partition import seeded_rng
from flcog.datamodules.partitioners.draws import (
    class_labels,
    cut_by_shares,
    deal,
    even_sizes,
    shuffled_classes,
)


@dataclass(frozen=True)
class ClientDirichlet(Partitioner):
    """Each client draws its own mix of classes, and all clients have the same size (to one sample).

        q_k ~ Dir_C(beta C pi),   pi_c the share of class c in the whole set (beta each where classes are balanced)

    and client k's labels are drawn from q_k. Clients are filled one after another; once a class is empty, it is removed from the
    mixes of the later clients (a client whose classes are all empty draws from the remaining samples), so the last clients
    resemble each other more than the first. Hsu et al. write the concentration as alpha pi: alpha = C beta.

    Hsu et al. 2019, https://arxiv.org/abs/1909.06335; Reddi et al. 2021, https://arxiv.org/abs/2003.00295; Apple's pfl.

    Args:
        beta: concentration per class, > 0.
    """

    beta: float

    def __post_init__(self) -> None:
        positive_and_finite(self, "beta")

    def __call__(self, samples: Samples, num_clients: int, seed: int) -> Partition:
        labels, rng = class_labels(samples), seeded_rng(seed)
        pools, sizes = shuffled_classes(labels, rng), even_sizes(len(samples), num_clients)
        left = np.bincount(labels)
        concentration = self.beta * len(left) * left / len(labels)
        owner = np.empty(len(labels), dtype=np.int64)
        # In blocks, because the mixes of a million clients over a hundred classes would take 800 MB. The size of a block decides
        # which random number goes where: changing it changes every split.
        block = max(1, 2**20 // len(left))
        for start in range(0, num_clients, block):
            clients = np.arange(start, min(start + block, num_clients))
            draws = np.repeat(np.arange(len(clients)), sizes[clients])
            drawn = _draw_labels(draws, rng.dirichlet(concentration, len(clients)), left, rng)
            for label, pool in enumerate(pools):
                takers, taken = clients[draws[drawn == label]], len(pool) - left[label]
                owner[pool[taken : taken + len(takers)]] = takers
            left = left - np.bincount(drawn, minlength=len(left))
        return Partition.from_assignment(owner, num_clients)


@dataclass(frozen=True)
class InnerDirichlet(Partitioner):
    """Each client draws its own mix of classes, and client sizes are given: FedDyn's split.

        q_k ~ Dir_C(beta, ..., beta),   n_k given, or proportional to exp(sigma z_k) with z_k ~ N(0, 1)

    Clients are filled side by side: a random client that is not full yet draws one label, until all are full. An empty class is
    removed from all mixes, so the last draws of every client, instead of the last clients, take the remaining samples.

    Acar et al. 2021 (FedDyn), https://arxiv.org/abs/2111.04263; also flwr's ``InnerDirichletPartitioner`` and FedLab.

    Args:
        beta: concentration, > 0.
        sizes: samples of each client, >= 1; together at most the size of the set; the remaining samples are left out. Equal sizes
            by default.
        sigma: standard deviation of the logarithm of the sizes, >= 0, where ``sizes`` is not given.
    """

    beta: float
    sizes: tuple[int, ...] | None = None
    sigma: float = 0.0

    def __post_init__(self) -> None:
        positive_and_finite(self, "beta")
        within(self, "[0, inf)", "sigma")
        all_at_least(self, 1, "sizes")

    def __call__(self, samples: Samples, num_clients: int, seed: int) -> Partition:
        labels, rng = class_labels(samples), seeded_rng(seed)
        if self.sizes is not None and (len(self.sizes) != num_clients or sum(self.sizes) > len(samples)):
            raise ValueError(
                f"InnerDirichlet was given {len(self.sizes)} sizes that sum to {sum(self.sizes)}, for {num_clients} clients and "
                f"{len(samples)} samples: give one size per client, within the set"
            )
        if self.sizes is not None:
            sizes = np.asarray(self.sizes)
        elif self.sigma:
            weights = np.exp(self.sigma * rng.standard_normal(num_clients))
            sizes = 1 + cut_by_shares(len(samples) - num_clients, weights / weights.sum())
        else:
            sizes = even_sizes(len(samples), num_clients)
        class_sizes = np.bincount(labels)
        priors = rng.dirichlet(np.full(len(class_sizes), self.beta), num_clients)
        # Drawing by a random client that is not full follows the order of events of Poisson processes of equal rates.
        times = np.cumsum(rng.standard_exponential(sizes.sum()))
        times -= np.repeat(np.concatenate([[0.0], times[np.cumsum(sizes)[:-1] - 1]]), sizes)
        client = np.repeat(np.arange(num_clients), sizes)[np.argsort(times)]
        drawn = _draw_labels(client, priors, class_sizes, rng)
        counts = np.bincount(client * len(class_sizes) + drawn, minlength=priors.size).reshape(priors.shape)
        return deal(labels, counts, rng)


def _draw_labels(client: np.ndarray, priors: np.ndarray, available: np.ndarray, rng: Generator) -> np.ndarray:
    """The label of each draw, in order: draw i is from ``priors[client[i]]`` over the classes that earlier draws have not used up.

    All draws are made at once as if nothing ran out. From the first that finds its class used up, every draw of that class is
    made again without it, and so on: at most one pass per class, each over the remaining draws. The distribution is the same as
    for drawing one by one.
    """
    priors, left, first = priors.copy(), available.copy(), 0
    labels = _choose(client, priors, left, rng)
    while True:
        rest = labels[first:]
        wanted = np.bincount(rest, minlength=len(left))
        short = np.flatnonzero(wanted > left)
        if len(short) == 0:
            return labels
        # Stably sorted by class, a class's draws are in order. The first draw after the class is empty comes too late.
        too_late = np.argsort(rest, kind="stable")[(np.cumsum(wanted) - wanted + left)[short]]
        earliest = too_late.argmin()
        left -= np.bincount(rest[: too_late[earliest]], minlength=len(left))
        first += too_late[earliest]
        priors[:, short[earliest]] = 0
        again = first + np.flatnonzero(labels[first:] == short[earliest])
        labels[again] = _choose(client[again], priors, left, rng)


def _choose(client: np.ndarray, priors: np.ndarray, left: np.ndarray, rng: Generator) -> np.ndarray:
    """Draw a label from each client's row of ``priors``, or from the samples ``left`` if that row is zero."""
    labels = np.empty(len(client), dtype=np.int64)
    block = max(1, 2**21 // priors.shape[1])
    for start in range(0, len(client), block):
        weights = priors[client[start : start + block]]
        weights[weights.sum(axis=1) == 0] = left
        cumulative = np.cumsum(weights, axis=1)
        threshold = rng.random(len(weights)) * cumulative[:, -1]
        # Rounding can lift a threshold to the very end; a used-up last class is then drawn again like any other.
        labels[start : start + block] = np.minimum((cumulative <= threshold[:, None]).sum(axis=1), priors.shape[1] - 1)
    return labels
