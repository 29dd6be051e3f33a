"""Helpers of several splits: classes of samples, seeded random numbers, shares cut into samples, samples dealt to clients."""

import numpy as np
from numpy.random import Generator

from flcog.data import Partition, Partitioner, Samples

REGRESSION_BINS = 10


def draw_class_cuts(
    class_sizes: np.ndarray, num_clients: int, beta: float, min_size: int, max_tries: int, rng: Generator, *, capped: bool
) -> tuple[np.ndarray, int]:
    """Samples of each client and class [K, C] by per-class Dirichlet shares, redrawn until no client has fewer than ``min_size``.

    Also returns how many clients every try left short of it: 0 on success.
    """
    capacity = class_sizes.sum() / num_clients
    fewest_short = num_clients
    for attempt in range(max_tries):
        counts = np.zeros((num_clients, len(class_sizes)), dtype=np.int64)
        sizes = np.zeros(num_clients, dtype=np.int64)
        for label, class_size in enumerate(class_sizes):
            takers = np.flatnonzero(sizes < capacity) if capped else np.arange(num_clients)
            counts[takers, label] = cut_by_shares(class_size, rng.dirichlet(np.full(len(takers), beta)))
            sizes += counts[:, label]
        fewest_short = min(fewest_short, int(np.count_nonzero(sizes < min_size)))
        # Clients fall short nearly independently, so a mean of m leaves none short with a chance of exp(-m): 1e-11 for 25.
        if fewest_short == 0 or (attempt >= 9 and fewest_short > 25):
            break
    return counts, fewest_short


def cut_by_shares(total: int, shares: np.ndarray) -> np.ndarray:
    """Integers that sum to ``total``, between the cumulative shares rounded down (so the last one gets the remainder)."""
    edges = np.zeros(len(shares) + 1, dtype=np.int64)
    edges[1:-1] = np.cumsum(shares[:-1]) * total
    edges[-1] = total
    return edges[1:] - edges[:-1]


def shuffled_classes(labels: np.ndarray, rng: Generator) -> list[np.ndarray]:
    """The samples of each class, in random order."""
    order = rng.permutation(len(labels))
    order = order[np.argsort(labels[order], kind="stable")]
    return np.split(order, np.cumsum(np.bincount(labels))[:-1])


def deal(labels: np.ndarray, counts: np.ndarray, rng: Generator) -> Partition:
    """Client k gets ``counts[k, c]`` random samples of class c; samples that no client asks for are left out."""
    owner = np.full(len(labels), -1)
    for pool, wanted in zip(shuffled_classes(labels, rng), counts.T, strict=True):
        owner[pool[: wanted.sum()]] = np.repeat(np.arange(len(counts)), wanted)
    return Partition.from_assignment(owner, len(counts))


def even_sizes(total: int, parts: int) -> np.ndarray:
    """Sizes of ``parts`` equal parts, none of them empty; the first parts have one more if ``total`` is not divisible."""
    if total < parts:
        raise ValueError(f"{total} samples cannot be cut into {parts} parts: lower num_clients, or a client's labels or shards")
    return total // parts + (np.arange(parts) < total % parts)


def no_draw(split: Partitioner, min_size: int, max_tries: int, num_clients: int, num_samples: int) -> ValueError:
    """The error of a split that drew too small clients each time."""
    return ValueError(
        f"{split} left clients with fewer than {min_size} samples in each draw, of up to {max_tries}, over {num_clients} clients and "
        f"{num_samples} samples: raise beta or max_tries, lower num_clients or the least size, or use Dirichlet with top_up, or "
        "ClientDirichlet, whose clients all have the same size"
    )


def checked_min_size(given: int | None, num_samples: int, num_clients: int) -> int:
    """The size of the smallest client: given, or the papers' 10 samples; refuses more than the set has.

    Where clients average a few dozen samples, asking for 10 would change the law or never succeed: the default is then 1.
    """
    min_size = (10 if num_samples >= 100 * num_clients else 1) if given is None else given
    if min_size * num_clients > num_samples:
        raise ValueError(
            f"{num_clients} clients of at least {min_size} samples need {min_size * num_clients}, and the set has "
            f"{num_samples}: lower min_size or num_clients"
        )
    return min_size


def class_labels(samples: Samples) -> np.ndarray:
    """One class per sample, as every split by label sees it: int64 [N], numbered 0 to C - 1 without gaps, in label order.

    - *Classification*: the target.
    - *Multi-label*: the sample's rarest label (of equally rare ones, the first); samples without any label form one more class.
      By its commonest label nearly every photograph would be of the same class, and the rare labels, which make multi-label
      clients differ, would be spread evenly. Stratified splits of such data start from the rarest label for that reason
      (Sechidis et al. 2011, https://doi.org/10.1007/978-3-642-23808-6_10).
    - *Regression*: ten bins of equal mass, of the first of several values. Repeated values stay in one bin, so heavily tied targets
      have fewer.
    """
    targets = samples.labels.detach().cpu().numpy()
    if targets.ndim == 2 and np.issubdtype(targets.dtype, np.floating) and not np.isin(targets, (0, 1)).all():
        targets = targets[:, 0]  # a regression's values
    if targets.ndim == 2:
        labels = np.full(len(targets), targets.shape[1])
        # From the commonest to the rarest, which so has the last word.
        for label in np.argsort(np.count_nonzero(targets, axis=0), kind="stable")[::-1]:
            labels[targets[:, label] != 0] = label
    elif np.issubdtype(targets.dtype, np.floating):
        labels = np.searchsorted(np.quantile(targets, np.linspace(0, 1, REGRESSION_BINS + 1)[1:-1]), targets)
    else:
        labels = targets
    return np.unique(labels, return_inverse=True)[1].astype(np.int64)
