"""How a training set falls over clients: the splits of the literature, each under a name of its own.

Every class here is a frozen dataclass of hyper-parameters that maps ``(samples, num_clients, seed)`` to a ``Partition``. Where a
split needs classes, :func:`class_labels` says what they are for multi-label and regression targets. All randomness is NumPy's
PCG64 seeded by ``seed``, so a split does not depend on the machine, on torch or on any global stream. (A later NumPy may draw
gamma variates in another way: save the partition, or cite its hash, where a split has to outlive the software.) ``NIIDBench``
alone draws as an older program does.

"Dirichlet" names at least four different splits, and accuracies of papers differ by that alone:

==================================  ==========================================================================================
``Dirichlet(beta)``                 each class is cut over the clients by Dirichlet shares; clients that hold the average already
                                    get no more (NIID-Bench, MOON, FedCOG, FedDisco): what most papers mean by "Dir"
``NIIDBench(beta)``                 the same, sample for sample as the code of FedCOG and FedDisco draws it from its seed
``Dirichlet(beta, capped=False)``   the same without that cap: client sizes vary far more (Yurochkin et al., FL-bench)
``ClientDirichlet(beta)``           each client draws its own mix of classes; all clients have the same size (Hsu et al., pfl)
``InnerDirichlet(beta, sizes)``     the same with sizes given or log-normal, clients filled side by side (FedDyn, flwr, FedLab)
``EqualDirichlet(beta)``            the capped one, laid end to end and re-cut into equal clients (Fedssyn)
==================================  ==========================================================================================

``IID``, ``Quantity``, ``Natural`` and ``ClientDirichlet`` split a million samples over a million clients in seconds. The other
splits by label hold a table of clients by classes, which is quick up to 100,000 clients or so.
"""

from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import inf
from pathlib import Path

import numpy as np
import torch
from numpy.random import PCG64, Generator

from flcog.data import IID, Partition, Partitioner, Samples

__all__ = [
    "IID",
    "BiasedUnbiased",
    "ByClass",
    "ClientDirichlet",
    "Dirichlet",
    "EqualDirichlet",
    "InnerDirichlet",
    "LabelShards",
    "LongTail",
    "NIIDBench",
    "Natural",
    "Partitioner",
    "Quantity",
    "Saved",
    "Shuffled",
    "class_labels",
]

REGRESSION_BINS = 10


def class_labels(samples: Samples) -> np.ndarray:
    """One class per sample, as every split by label sees it: int64 [N], numbered 0 to C - 1 without gaps, in label order.

    - *Classification*: the target.
    - *Multi-label*: the sample's rarest label (of equally rare ones, the first); samples without any label form one more class.
      By its commonest label nearly every photograph would be of the same class, and the rare labels, which make multi-label
      clients differ, would be spread evenly. Stratified splits of such data start from the rarest label for that reason
      (Sechidis et al. 2011, https://doi.org/10.1007/978-3-642-23808-6_10).
    - *Regression*: ten bins of equal mass. Repeated values stay in one bin, so heavily tied targets have fewer.
    """
    targets = samples.targets.detach().cpu().numpy()
    if targets.ndim == 2:
        labels = np.full(len(targets), targets.shape[1])
        # From the commonest to the rarest, which so has the last word.
        for label in np.argsort(np.count_nonzero(targets, axis=0), kind="stable")[::-1]:
            labels[targets[:, label] != 0] = label
    elif np.issubdtype(targets.dtype, np.floating):
        if not np.isfinite(targets).all():
            raise ValueError("the regression targets hold NaN or infinite values: remove those samples before splitting the set")
        labels = np.searchsorted(np.quantile(targets, np.linspace(0, 1, REGRESSION_BINS + 1)[1:-1]), targets)
    else:
        labels = targets
    return np.unique(labels, return_inverse=True)[1].astype(np.int64)


@dataclass(frozen=True)
class Dirichlet(Partitioner):
    """Each class is cut over the clients by shares drawn from a Dirichlet distribution: small ``beta``, few classes per client.

    For each class c in turn, with N samples and K clients,

        p_c ~ Dir_K(beta, ..., beta)   over the clients that hold fewer than N / K samples so far
        client k receives the next p_kc n_c of the n_c samples of class c

    NIID-Bench writes the cap as p_kc [size_k < N / K], renormalised. Drawing over the open clients alone is the same law (part
    of a Dirichlet vector, renormalised, is a Dirichlet vector) and cannot end in 0 / 0. The whole split is redrawn until its
    smallest client has ``min_size`` samples.

    Yurochkin et al. 2019, https://arxiv.org/abs/1905.12022 (no cap); Li et al. 2022 (NIID-Bench), https://arxiv.org/abs/2102.02079
    (cap). This is NIID-1 of FedCOG (beta 0.1) and of FedDisco (beta 0.5; 5 for HAM10000 and CIFAR-100).

    Args:
        beta: concentration, > 0; the papers go from 0.01 (a class or two per client) to 10 (almost IID).
        capped: close clients that have reached the average size. Without it client sizes vary far more.
        min_size: samples that the smallest client must have, >= 0. By default 10, as in the papers, where clients average 100 or
            more, and 1 below.
        max_tries: how often the split is drawn before giving up, >= 1.
        top_up: where no draw succeeds, move samples of the largest client's commonest class to clients that are short, instead
            of raising an error. No longer the papers' law, but the only way to, say, beta 0.1 over 1,000 clients of 50, where one
            draw in ten thousand leaves no client empty.
    """

    beta: float
    capped: bool = True
    min_size: int | None = None
    max_tries: int = 1000
    top_up: bool = False

    def __post_init__(self) -> None:
        _require_positive(beta=self.beta)
        _require_at_least(0, min_size=self.min_size)
        _require_at_least(1, max_tries=self.max_tries)

    def __call__(self, samples: Samples, num_clients: int, seed: int) -> Partition:
        _require_samples(len(samples), num_clients)
        labels, generator = class_labels(samples), _generator(seed)
        min_size = _smallest_client(len(samples), num_clients) if self.min_size is None else self.min_size
        _require_enough(len(samples), num_clients, min_size)
        class_sizes = np.bincount(labels)
        counts, short = _draw_cuts(class_sizes, num_clients, self.beta, min_size, self.max_tries, generator, capped=self.capped)
        if short and not self.top_up:
            raise ValueError(
                f"Dirichlet(beta={self.beta}) over {num_clients} clients and {len(samples)} samples left {short} or more clients "
                f"with fewer than {min_size} samples in every draw, of up to {self.max_tries}: raise beta or max_tries, lower "
                "min_size or num_clients, set top_up, or use ClientDirichlet, whose clients all have the same size"
            )
        return _deal(labels, _topped_up(counts, min_size), generator)


@dataclass(frozen=True)
class NIIDBench(Partitioner):
    """The split that published code makes: ``Dirichlet(beta)``, sample for sample as NIID-Bench draws it from its seed.

    For each class c in turn, from one ``numpy.random.seed(seed)`` on: shuffle the n_c samples; draw p ~ Dir_K(beta, ..., beta);
    set p_k to 0 where client k holds N / K samples or more, and renormalise; client k gets the samples from
    floor((p_1 + ... + p_(k-1)) n_c) to floor((p_1 + ... + p_k) n_c). Redrawn until the smallest client has ``min_size`` samples.

    The programs of FedCOG and FedDisco hold the same loop, with 0 as the default seed and nothing drawn from NumPy before. So where
    these papers say Dirichlet, ``NIIDBench(beta)`` with ``partition_seed`` 0 gives its clients the same samples, if the authors
    left the seed as it was. In two draws of Dirichlet(0.1) over ten clients of CIFAR-10 FedAvg's accuracy differed by four points
    (RESULTS.md). NumPy promises never to change that generator's stream.

    Li et al. 2022 (NIID-Bench), https://arxiv.org/abs/2102.02079.

    Args:
        beta: concentration, > 0.
        min_size: samples that the smallest client must have, >= 0; 10 in all of that code.
        max_tries: how often the split is drawn before giving up, >= 1.
        cap_samples: N of the cap, the samples whose even share closes a client, >= 1; those that are split, by default. Under
            ``LongTail`` FedDisco's code takes all that the set had before.
    """

    beta: float
    min_size: int = 10
    max_tries: int = 1000
    cap_samples: int | None = None

    def __post_init__(self) -> None:
        _require_positive(beta=self.beta)
        _require_at_least(0, min_size=self.min_size)
        _require_at_least(1, max_tries=self.max_tries, cap_samples=self.cap_samples)

    def __call__(self, samples: Samples, num_clients: int, seed: int) -> Partition:
        _require_samples(len(samples), num_clients)
        if not 0 <= seed < 2**32:
            raise ValueError(f"NIIDBench's generator takes a partition_seed from 0 to {2**32 - 1}; got {seed}")
        _require_enough(len(samples), num_clients, self.min_size)
        labels, stream = class_labels(samples), np.random.RandomState(seed)
        for _ in range(self.max_tries):
            owner = self._draw(labels, num_clients, stream)
            if (owner >= 0).all() and np.bincount(owner, minlength=num_clients).min() >= self.min_size:
                return Partition.from_assignment(owner, num_clients)
        raise ValueError(
            f"NIIDBench(beta={self.beta}) left one of {num_clients} clients with fewer than {self.min_size} of {len(samples)} samples "
            f"in each of {self.max_tries} draws, or some to nobody: raise beta, max_tries or cap_samples, lower min_size or "
            "num_clients, or use Dirichlet, whose top_up needs no luck"
        )

    def _draw(self, labels: np.ndarray, num_clients: int, stream: np.random.RandomState) -> np.ndarray:
        """Each sample's client, -1 where a class found no client."""
        owner, sizes = np.full(len(labels), -1), np.zeros(num_clients, dtype=np.int64)
        cap = (self.cap_samples or len(labels)) / num_clients
        for label in range(labels.max() + 1):
            pool = np.flatnonzero(labels == label)
            stream.shuffle(pool)
            shares = stream.dirichlet(np.full(num_clients, self.beta)) * (sizes < cap)
            if shares.sum() > 0:  # NIID-Bench divides by 0 where all mass, in floating point, fell to closed clients
                counts = _cut(len(pool), shares / shares.sum())
                owner[pool] = np.repeat(np.arange(num_clients), counts)
                sizes += counts
        return owner


@dataclass(frozen=True)
class ClientDirichlet(Partitioner):
    """Each client draws its own mix of classes, and all clients have the same size (to one sample).

        q_k ~ Dir_C(beta C pi),   pi_c the share of class c in the whole set (beta each where classes are balanced)

    and client k's labels are drawn from q_k. Clients are filled one after another; once a class has run out, it is struck from
    the mixes of those that follow (a client that wants nothing but struck classes draws from what is left), so the last clients
    are nearer to one another than the first. Hsu et al. write the concentration as alpha pi: alpha = C beta.

    Hsu et al. 2019, https://arxiv.org/abs/1909.06335; Reddi et al. 2021, https://arxiv.org/abs/2003.00295; Apple's pfl.

    Args:
        beta: concentration per class, > 0.
    """

    beta: float

    def __post_init__(self) -> None:
        _require_positive(beta=self.beta)

    def __call__(self, samples: Samples, num_clients: int, seed: int) -> Partition:
        _require_samples(len(samples), num_clients)
        labels, generator = class_labels(samples), _generator(seed)
        pools, sizes = _pools(labels, generator), _even_sizes(len(samples), num_clients)
        left = np.bincount(labels)
        concentration = self.beta * len(left) * left / len(labels)
        owner = np.empty(len(labels), dtype=np.int64)
        # In blocks, because the mixes of a million clients over a hundred classes would take 800 MB. The size of a block decides
        # which random number goes where: changing it changes every split.
        block = max(1, 2**20 // len(left))
        for start in range(0, num_clients, block):
            clients = np.arange(start, min(start + block, num_clients))
            draws = np.repeat(np.arange(len(clients)), sizes[clients])
            drawn = _draw_labels(draws, generator.dirichlet(concentration, len(clients)), left, generator)
            for label, pool in enumerate(pools):
                takers, taken = clients[draws[drawn == label]], len(pool) - left[label]
                owner[pool[taken : taken + len(takers)]] = takers
            left = left - np.bincount(drawn, minlength=len(left))
        return Partition.from_assignment(owner, num_clients)


@dataclass(frozen=True)
class InnerDirichlet(Partitioner):
    """Each client draws its own mix of classes, and client sizes are given: FedDyn's split.

        q_k ~ Dir_C(beta, ..., beta),   n_k given, or proportional to exp(sigma z_k) with z_k ~ N(0, 1)

    Clients are filled side by side: a random client that is not full yet draws one label, until all are full. A class that has
    run out is struck from all mixes, so the last draws of every client, not the last clients, take what is left.

    Acar et al. 2021 (FedDyn), https://arxiv.org/abs/2111.04263; also flwr's ``InnerDirichletPartitioner`` and FedLab.

    Args:
        beta: concentration, > 0.
        sizes: samples of each client, >= 1; together at most the set's, and what is over is left out. Equal sizes by default.
        sigma: standard deviation of the logarithm of the sizes, >= 0, where ``sizes`` is not given.
    """

    beta: float
    sizes: tuple[int, ...] | None = None
    sigma: float = 0.0

    def __post_init__(self) -> None:
        _require_positive(beta=self.beta)
        if not 0 <= self.sigma < inf:
            raise ValueError(f"sigma must be 0 or positive; got {self.sigma}")
        if self.sizes is not None and (self.sigma or not self.sizes or min(self.sizes) < 1):
            raise ValueError(f"give sizes, each at least 1, or a sigma, not both; got sizes={self.sizes}, sigma={self.sigma}")

    def __call__(self, samples: Samples, num_clients: int, seed: int) -> Partition:
        _require_samples(len(samples), num_clients)
        labels, generator = class_labels(samples), _generator(seed)
        if self.sizes is not None and (len(self.sizes) != num_clients or sum(self.sizes) > len(samples)):
            raise ValueError(
                f"InnerDirichlet was given {len(self.sizes)} sizes that sum to {sum(self.sizes)}, for {num_clients} clients and "
                f"{len(samples)} samples: give one size per client, within the set"
            )
        if self.sizes is not None:
            sizes = np.asarray(self.sizes)
        elif self.sigma:
            weights = np.exp(self.sigma * generator.standard_normal(num_clients))
            sizes = 1 + _cut(len(samples) - num_clients, weights / weights.sum())
        else:
            sizes = _even_sizes(len(samples), num_clients)
        class_sizes = np.bincount(labels)
        priors = generator.dirichlet(np.full(len(class_sizes), self.beta), num_clients)
        # "A random client that is not full draws next" is the order in which events of equally fast Poisson processes arrive.
        times = np.cumsum(generator.standard_exponential(sizes.sum()))
        times -= np.repeat(np.concatenate([[0.0], times[np.cumsum(sizes)[:-1] - 1]]), sizes)
        client = np.repeat(np.arange(num_clients), sizes)[np.argsort(times)]
        drawn = _draw_labels(client, priors, class_sizes, generator)
        counts = np.bincount(client * len(class_sizes) + drawn, minlength=priors.size).reshape(priors.shape)
        return _deal(labels, counts, generator)


@dataclass(frozen=True)
class EqualDirichlet(Partitioner):
    """A capped Dirichlet split, laid end to end client by client and re-cut into equal parts: Fedssyn's split.

    Clients are handled in groups of ``group_size``, each with its equal share of the shuffled samples; in each group the split
    of ``Dirichlet`` is redrawn until the smallest client has half the average. Re-cutting gives every client N / K samples (to
    one) and lets neighbours share a class at each cut.

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
        _require_positive(beta=self.beta)
        _require_at_least(1, group_size=self.group_size, max_tries=self.max_tries)

    def __call__(self, samples: Samples, num_clients: int, seed: int) -> Partition:
        _require_samples(len(samples), num_clients)
        labels, generator = class_labels(samples), _generator(seed)
        order = generator.permutation(len(samples))
        first_clients = [*range(0, num_clients, self.group_size or num_clients), num_clients]
        line = []
        for first, last in pairwise(first_clients):
            clients = last - first
            members = order[first * len(order) // num_clients : last * len(order) // num_clients]
            members = members[np.argsort(labels[members], kind="stable")]
            class_sizes, min_size = np.bincount(labels[members]), len(members) // (2 * clients)
            counts, short = _draw_cuts(class_sizes, clients, self.beta, min_size, self.max_tries, generator, capped=True)
            if short:
                raise ValueError(
                    f"EqualDirichlet(beta={self.beta}) found no draw in which each of {clients} clients gets half of the "
                    f"average of {len(members) / clients:.0f} samples, in up to {self.max_tries} draws: raise beta, or "
                    "set group_size to at most the number of classes"
                )
            owner = np.repeat(np.tile(np.arange(clients), len(class_sizes)), counts.T.ravel())
            line.append(members[np.argsort(owner, kind="stable")])
        client_of_sample = np.empty(len(samples), dtype=np.int64)
        client_of_sample[np.concatenate(line)] = np.repeat(np.arange(num_clients), _even_sizes(len(samples), num_clients))
        return Partition.from_assignment(client_of_sample, num_clients)


@dataclass(frozen=True)
class LabelShards(Partitioner):
    """Each client holds a fixed number of labels, in equal parts of each among the clients that hold it.

    Client k holds the labels (s k + j) mod C, j = 0 ... s - 1: label groups go round the clients in turn. This is NIID-2 of FedCOG,
    https://arxiv.org/abs/2312.05966 (2 labels of 10, 10 of 100), after McMahan et al. 2017, https://arxiv.org/abs/1602.05629.

    Which labels meet at a client decides too. With ``random_labels`` client k holds label k mod C and s - 1 others at random, so that
    clients overlap in one label and not in the next, and their sizes differ: NIID-Bench's "#C = s", Li et al. 2022,
    https://arxiv.org/abs/2102.02079.

    Args:
        labels_per_client: s, from 1 to the number of classes.
        random_labels: all labels of a client but its first are drawn from ``partition_seed``. Asks for a client per class.
    """

    labels_per_client: int
    random_labels: bool = False

    def __post_init__(self) -> None:
        _require_at_least(1, labels_per_client=self.labels_per_client)

    def __call__(self, samples: Samples, num_clients: int, seed: int) -> Partition:
        _require_samples(len(samples), num_clients)
        labels, generator = class_labels(samples), _generator(seed)
        class_sizes = np.bincount(labels)
        num_classes, shards = len(class_sizes), num_clients * self.labels_per_client
        if self.labels_per_client > num_classes or shards < num_classes:
            raise ValueError(
                f"{num_clients} clients with {self.labels_per_client} labels each cannot share {num_classes} classes: "
                f"labels_per_client goes from {-(-num_classes // num_clients)}, where each class has a client, to {num_classes}"
            )
        if self.random_labels and num_clients < num_classes:
            raise ValueError(
                f"random_labels gives each of {num_clients} clients one label of its own, and there are {num_classes} classes: set "
                f"num_clients to {num_classes} or more, or random_labels to false"
            )
        counts = np.zeros((num_clients, num_classes), dtype=np.int64)
        held = self._held(num_clients, num_classes, generator)
        for label, size in enumerate(class_sizes):
            holders = np.flatnonzero(held[:, label])
            if size < len(holders):
                raise ValueError(
                    f"{len(holders)} clients share class {label}, which has {size} samples: lower num_clients or "
                    "labels_per_client"
                )
            counts[holders, label] = _even_sizes(size, len(holders))
        return _deal(labels, counts, generator)

    def _held(self, num_clients: int, num_classes: int, generator: Generator) -> np.ndarray:
        """Whether client k holds label c [K, C]."""
        held = np.zeros((num_clients, num_classes), dtype=bool)
        for k in range(num_clients):
            if self.random_labels:
                others = generator.permutation(np.delete(np.arange(num_classes), k % num_classes))
                held[k, [k % num_classes, *others[: self.labels_per_client - 1]]] = True
            else:
                held[k, (self.labels_per_client * k + np.arange(self.labels_per_client)) % num_classes] = True
        return held


@dataclass(frozen=True)
class ByClass(Partitioner):
    """One client per class: client k holds class k ("split by class" in Fedssyn's MNIST study, https://arxiv.org/abs/2306.13263).

    ``num_clients`` must be the number of classes; ``LabelShards(1)`` shares classes between more clients.
    """

    def __call__(self, samples: Samples, num_clients: int, seed: int) -> Partition:
        labels = class_labels(samples)
        num_classes = int(labels.max()) + 1
        if num_clients != num_classes:
            raise ValueError(
                f"ByClass makes one client of each class: set num_clients to {num_classes} (got {num_clients}), or use "
                "LabelShards(1)"
            )
        return Partition.from_assignment(labels, num_clients)


@dataclass(frozen=True)
class BiasedUnbiased(Partitioner):
    """Clients that know a few classes beside clients that know all, every one of the same size.

    With s_c = floor(n_c / K) and G = C / ``labels_per_client`` label groups, biased client k takes G s_c samples of each class c
    of group k mod G, and an unbiased client s_c samples of every class. Biased clients come first. On CIFAR-10, 5 + 1 clients
    hold 8,330 samples each, 50 + 10 hold 830 and 40 + 10 hold 1,000. The n_c - K s_c samples over are left out.

    This is NIID-2 of FedDisco, https://arxiv.org/abs/2305.19229, where C must divide by 5; and, as ``BiasedUnbiased(4, 1, 2)``,
    its split of AG News, where 80 % of the clients know 2 of 4 topics.

    Args:
        biased, unbiased: how many clients of each kind, >= 0. ``num_clients`` is their sum, or a multiple that multiplies both.
        labels_per_client: classes of a biased client, a divisor of C; a fifth of them by default. The number of biased clients
            must be a multiple of G.
    """

    biased: int = 5
    unbiased: int = 1
    labels_per_client: int | None = None

    def __post_init__(self) -> None:
        _require_at_least(0, biased=self.biased, unbiased=self.unbiased)
        _require_at_least(1, labels_per_client=self.labels_per_client)
        if self.biased + self.unbiased == 0:
            raise ValueError("biased and unbiased are both 0: there would be no clients")

    def __call__(self, samples: Samples, num_clients: int, seed: int) -> Partition:
        _require_samples(len(samples), num_clients)
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
        return _deal(labels, counts, _generator(seed))


@dataclass(frozen=True)
class Quantity(Partitioner):
    """Client sizes are skewed, labels are not: n_k = m + p_k (N - K m), p ~ Dir_K(beta), samples at random.

    Li et al. 2022 (NIID-Bench), https://arxiv.org/abs/2102.02079, who have m = 0 and redraw until the smallest client has 10
    samples. Giving everyone m beforehand differs by at most m samples a client and works for any beta and number of clients.

    Args:
        beta: concentration, > 0 (NIID-Bench: 0.5).
        min_size: m, >= 0. By default 10 where clients average 100 samples or more, and 1 below.
    """

    beta: float
    min_size: int | None = None

    def __post_init__(self) -> None:
        _require_positive(beta=self.beta)
        _require_at_least(0, min_size=self.min_size)

    def __call__(self, samples: Samples, num_clients: int, seed: int) -> Partition:
        _require_samples(len(samples), num_clients)
        generator = _generator(seed)
        min_size = _smallest_client(len(samples), num_clients) if self.min_size is None else self.min_size
        _require_enough(len(samples), num_clients, min_size)
        spare = len(samples) - num_clients * min_size
        sizes = min_size + _cut(spare, generator.dirichlet(np.full(num_clients, self.beta)))
        return Partition.from_assignment(generator.permutation(np.repeat(np.arange(num_clients), sizes)), num_clients)


@dataclass(frozen=True)
class Natural(Partitioner):
    """One client per user of the data set: FLAIR's photographers, FEMNIST's writers.

    The data decide how many clients there are, so ``num_clients`` is not used; ``max_users`` limits them. Clients come in the
    order of their users' names.

    FLAIR, Song et al. 2022, https://arxiv.org/abs/2207.08869 (FedCOG draws 200 of its users); LEAF, Caldas et al. 2018,
    https://arxiv.org/abs/1812.01097 (FEMNIST).

    Args:
        max_users: draw that many users at random, >= 1; None takes all.
        min_samples: leave out users with fewer samples, >= 1.
    """

    max_users: int | None = None
    min_samples: int = 1

    def __post_init__(self) -> None:
        _require_at_least(1, max_users=self.max_users, min_samples=self.min_samples)

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
            chosen = np.sort(_generator(seed).choice(chosen, self.max_users, replace=False))
        client_of_user = np.full(len(sizes), -1)
        client_of_user[chosen] = np.arange(len(chosen))
        return Partition.from_assignment(client_of_user[user], len(chosen))


@dataclass(frozen=True)
class LongTail(Partitioner):
    """Makes the whole set imbalanced, then splits what is left: class c keeps n_c = n_1 rho^(-(c - 1) / (C - 1)) samples.

    Which of a class's samples stay is random. n_1 is the size of the first class, and no class keeps more than it has: meant for
    sets whose classes are about equally large. CIFAR-10 with rho 20 keeps 5,000 samples of its first class and 250 of its last.

    Cui et al. 2019, https://arxiv.org/abs/1901.05555; FedDisco's globally imbalanced study (rho 1 to 50, then Dirichlet),
    https://arxiv.org/abs/2305.19229.

    Args:
        rho: imbalance ratio, the first class's size over the last's, >= 1; 1 is balanced.
        split: how the samples that are kept fall over clients.
    """

    rho: float
    split: Partitioner = field(default_factory=IID)

    def __post_init__(self) -> None:
        if not 1 <= self.rho < inf:
            raise ValueError(f"rho is the largest class's size over the smallest's, at least 1; got {self.rho}")

    def __call__(self, samples: Samples, num_clients: int, seed: int) -> Partition:
        pools = _pools(class_labels(samples), _generator(seed, stream=2))
        exponents = -np.arange(len(pools)) / max(1, len(pools) - 1)
        # The small number keeps a product like 500 * 10**-2 from falling just under the integer that it is.
        wanted = np.maximum(1, len(pools[0]) * self.rho**exponents + 1e-6).astype(np.int64)
        kept = np.sort(np.concatenate([pool[:size] for pool, size in zip(pools, wanted, strict=True)]))
        partition = self.split(_without_inputs(samples, kept), num_clients, seed)
        return Partition(kept[partition.indices], partition.offsets)


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
        if not 0 <= self.p <= 1:
            raise ValueError(f"p is the fraction of a client's samples that is mixed, 0 to 1; got {self.p}")

    def __call__(self, samples: Samples, num_clients: int, seed: int) -> Partition:
        partition = self.split(samples, num_clients, seed)
        generator = _generator(seed, stream=3)
        sizes = partition.sizes
        client = np.repeat(np.arange(partition.num_clients), sizes)
        # Random order within each client: the sort is by client first, and clients lie one after another already.
        order = np.lexsort((generator.random(len(client)), client))
        position = np.arange(len(client)) - partition.offsets[client]
        mixed = order[position < np.rint(self.p * sizes).astype(np.int64)[client]]
        client[mixed] = generator.permutation(client[mixed])
        owner = np.full(len(samples), -1)
        owner[partition.indices] = client
        return Partition.from_assignment(owner, partition.num_clients)


@dataclass(frozen=True)
class Saved(Partitioner):
    """A partition from a file that ``Partition.save`` wrote, for runs on a split that a paper cites.

    The file decides how many clients there are, so ``num_clients`` is not used, and neither is the seed.

    Args:
        path: the ``.npz`` file.
        hash: the partition's hash; the file must have it where one is given.
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
        if len(np.unique(partition.indices)) < len(partition.indices):
            raise ValueError(f"the partition in {self.path} gives some samples to more than one client: it is damaged")
        return partition


def _generator(seed: int, stream: int = 0) -> Generator:
    """Streams keep a split that wraps another from drawing the same numbers (stream 1 is the held-out parts')."""
    return Generator(PCG64([seed, stream] if stream else seed))


def _draw_cuts(
    class_sizes: np.ndarray, num_clients: int, beta: float, min_size: int, max_tries: int, generator: Generator, *, capped: bool
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
            counts[takers, label] = _cut(class_size, generator.dirichlet(np.full(len(takers), beta)))
            sizes += counts[:, label]
        fewest_short = min(fewest_short, int(np.count_nonzero(sizes < min_size)))
        # Clients fall short nearly independently, so a mean of m leaves none short with a chance of exp(-m): 1e-11 for 25.
        if fewest_short == 0 or (attempt >= 9 and fewest_short > 25):
            break
    return counts, fewest_short


def _cut(total: int, shares: np.ndarray) -> np.ndarray:
    """Integers that sum to ``total``, between the cumulative shares rounded down (so the last takes what rounding leaves)."""
    edges = np.zeros(len(shares) + 1, dtype=np.int64)
    edges[1:-1] = np.cumsum(shares[:-1]) * total
    edges[-1] = total
    return edges[1:] - edges[:-1]


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


def _draw_labels(client: np.ndarray, priors: np.ndarray, available: np.ndarray, generator: Generator) -> np.ndarray:
    """The label of each draw, in order: draw i is from ``priors[client[i]]`` over the classes that earlier draws have not used up.

    All draws are made at once as if nothing ran out. From the first that finds its class used up, every draw of that class is
    made again without it, and so on: as many passes as classes at most, each over what follows. The law is that of drawing one
    by one.
    """
    priors, left, first = priors.copy(), available.copy(), 0
    labels = _choose(client, priors, left, generator)
    while True:
        rest = labels[first:]
        wanted = np.bincount(rest, minlength=len(left))
        short = np.flatnonzero(wanted > left)
        if len(short) == 0:
            return labels
        # Stably sorted by class, a class's draws lie in order; the one after the last that can be served comes too late.
        too_late = np.argsort(rest, kind="stable")[(np.cumsum(wanted) - wanted + left)[short]]
        earliest = too_late.argmin()
        left -= np.bincount(rest[: too_late[earliest]], minlength=len(left))
        first += too_late[earliest]
        priors[:, short[earliest]] = 0
        again = first + np.flatnonzero(labels[first:] == short[earliest])
        labels[again] = _choose(client[again], priors, left, generator)


def _choose(client: np.ndarray, priors: np.ndarray, left: np.ndarray, generator: Generator) -> np.ndarray:
    """A label for each draw from its client's row of ``priors``, or from what is ``left`` where that row is all zero."""
    labels = np.empty(len(client), dtype=np.int64)
    block = max(1, 2**21 // priors.shape[1])
    for start in range(0, len(client), block):
        weights = priors[client[start : start + block]]
        weights[weights.sum(axis=1) == 0] = left
        cumulative = np.cumsum(weights, axis=1)
        threshold = generator.random(len(weights)) * cumulative[:, -1]
        # Rounding can lift a threshold to the very end; a used-up last class is then drawn again like any other.
        labels[start : start + block] = np.minimum((cumulative <= threshold[:, None]).sum(axis=1), priors.shape[1] - 1)
    return labels


def _pools(labels: np.ndarray, generator: Generator) -> list[np.ndarray]:
    """The samples of each class, in random order."""
    order = generator.permutation(len(labels))
    order = order[np.argsort(labels[order], kind="stable")]
    return np.split(order, np.cumsum(np.bincount(labels))[:-1])


def _deal(labels: np.ndarray, counts: np.ndarray, generator: Generator) -> Partition:
    """Client k gets ``counts[k, c]`` random samples of class c; samples that no client asks for are left out."""
    owner = np.full(len(labels), -1)
    for pool, wanted in zip(_pools(labels, generator), counts.T, strict=True):
        owner[pool[: wanted.sum()]] = np.repeat(np.arange(len(counts)), wanted)
    return Partition.from_assignment(owner, len(counts))


def _even_sizes(total: int, parts: int) -> np.ndarray:
    return total // parts + (np.arange(parts) < total % parts)


def _smallest_client(num_samples: int, num_clients: int) -> int:
    """The papers' 10 samples; where clients average a few dozen, asking for 10 would change the law or never succeed."""
    return 10 if num_samples >= 100 * num_clients else 1


def _without_inputs(samples: Samples, kept: np.ndarray) -> Samples:
    """The samples at ``kept`` as partitioners see them: indices stand in for inputs, which may be too large to copy."""
    targets = samples.targets[torch.from_numpy(kept).to(samples.targets.device)]
    return replace(samples, inputs=kept, targets=targets, users=None if samples.users is None else samples.users[kept])


def _require_enough(num_samples: int, num_clients: int, min_size: int) -> None:
    if min_size * num_clients > num_samples:
        raise ValueError(
            f"{num_clients} clients of at least {min_size} samples need {min_size * num_clients}, and the set has "
            f"{num_samples}: lower min_size or num_clients"
        )


def _require_samples(num_samples: int, num_clients: int) -> None:
    if not 1 <= num_clients <= num_samples:
        raise ValueError(f"{num_clients} clients cannot share {num_samples} samples: each needs one; set num_clients")


def _require_positive(**values: float) -> None:
    for name, value in values.items():
        if not 0 < value < inf:
            raise ValueError(f"{name} must be positive and finite; got {value}")


def _require_at_least(least: int, **values: int | None) -> None:
    for name, value in values.items():
        if value is not None and value < least:
            raise ValueError(f"{name} must be at least {least}; got {value}")
