"""Splits in which a client holds few labels: a fixed number of them, shards of the sorted set, one class, or FedDisco's groups."""

from dataclasses import dataclass

import numpy as np
from numpy.random import Generator

from flcog.core.checks import at_least, within
from flcog.data import Partition, Partitioner, Samples
from flcog.data.partition import seeded_rng
from flcog.datamodules.partitioners.draws import class_labels, deal, even_sizes


@dataclass(frozen=True)
class LabelShards(Partitioner):
    """Each client has a fixed number of labels; the clients with a label share its samples equally.

    Client k has the labels (s k + j) mod C, j = 0 ... s - 1: the label groups repeat over the clients. This is NIID-2 of FedCOG,
    https://arxiv.org/abs/2312.05966 (2 labels of 10, 10 of 100). McMahan et al. 2017 deal pieces of the sorted set instead:
    :class:`SortedShards`.

    The combination of labels at a client also matters. With ``random_labels``, client k has label k mod C and s - 1 other random
    labels, so that two clients may share some labels but not others, and sizes differ: NIID-Bench's "#C = s", Li et al. 2022,
    https://arxiv.org/abs/2102.02079.

    Args:
        labels_per_client: s, from 1 to the number of classes.
        random_labels: draw all labels of a client except its first from ``partition_seed``. Needs at least as many clients as
            classes.
    """

    labels_per_client: int
    random_labels: bool = False

    def __post_init__(self) -> None:
        at_least(self, 1, "labels_per_client")

    def __call__(self, samples: Samples, num_clients: int, seed: int) -> Partition:
        labels, rng = class_labels(samples), seeded_rng(seed)
        class_sizes = np.bincount(labels)
        num_classes, width = len(class_sizes), self.labels_per_client
        if width > num_classes or num_classes > num_clients * (1 if self.random_labels else width):
            raise ValueError(
                f"{num_clients} clients with {width} labels each cannot share {num_classes} classes: labels_per_client goes from "
                f"{-(-num_classes // num_clients)}, where each class has a client, to {num_classes}; random_labels needs as many clients"
            )
        counts = np.zeros((num_clients, num_classes), dtype=np.int64)
        held = self._held(num_clients, num_classes, rng)
        for label, size in enumerate(class_sizes):
            holders = np.flatnonzero(held[:, label])
            counts[holders, label] = even_sizes(size, len(holders))
        return deal(labels, counts, rng)

    def _held(self, num_clients: int, num_classes: int, rng: Generator) -> np.ndarray:
        """Whether client k holds label c [K, C]."""
        held = np.zeros((num_clients, num_classes), dtype=bool)
        for k in range(num_clients):
            if self.random_labels:
                others = rng.permutation(np.delete(np.arange(num_classes), k % num_classes))
                held[k, [k % num_classes, *others[: self.labels_per_client - 1]]] = True
            else:
                held[k, (self.labels_per_client * k + np.arange(self.labels_per_client)) % num_classes] = True
        return held


@dataclass(frozen=True)
class ByClass(Partitioner):
    """One client per class: client k holds class k ("split by class" in Fedssyn's MNIST study, https://arxiv.org/abs/2306.13263).

    The data determine the number of clients, so ``num_clients`` is not used; ``LabelShards(1)`` shares classes between more clients.
    """

    def __call__(self, samples: Samples, num_clients: int, seed: int) -> Partition:
        labels = class_labels(samples)
        return Partition.from_assignment(labels, int(labels.max()) + 1)


@dataclass(frozen=True)
class SortedShards(Partitioner):
    """Sorts the samples by label, cuts them into K s shards of equal size, and deals s random shards to each of K clients.

    Most clients hold s labels, some hold fewer because two of their shards have one label, and some hold more because a shard lies
    across the border of two labels. Samples of one label keep the order of the data set. Shard sizes differ by one sample at most.

    McMahan et al. 2017, Communication-Efficient Learning of Deep Networks from Decentralized Data, section 3,
    https://arxiv.org/abs/1602.05629: MNIST, 100 clients, 200 shards of 300 samples, two for each client.

    As YAML: ``partitioner: {class_path: SortedShards, init_args: {shards_per_client: 2}}``

    Args:
        shards_per_client: s, at least 1.
        uniform_clients: the number of clients, the last ones, that hold equal uniform shares of all samples instead; the others share the
            rest. Studies of attacks give attackers such data.
    """

    shards_per_client: int = 2
    uniform_clients: int = 0

    def __post_init__(self) -> None:
        at_least(self, 1, "shards_per_client")

    def __call__(self, samples: Samples, num_clients: int, seed: int) -> Partition:
        within(self, f"[0, {num_clients})", "uniform_clients", hint="the other clients have the shards")
        sorting = num_clients - self.uniform_clients
        rng, count = seeded_rng(seed), sorting * self.shards_per_client
        client_of_sample = np.empty(len(samples), np.int64)
        by_label = np.argsort(class_labels(samples), kind="stable")
        if self.uniform_clients:
            uniform = rng.permutation(len(samples))[: self.uniform_clients * (len(samples) // num_clients)]
            client_of_sample[uniform] = sorting + np.arange(len(uniform)) % self.uniform_clients
            by_label = by_label[~np.isin(by_label, uniform)]
        client_of_shard = rng.permutation(np.repeat(np.arange(sorting), self.shards_per_client))
        client_of_sample[by_label] = np.repeat(client_of_shard, even_sizes(len(by_label), count))
        return Partition.from_assignment(client_of_sample, num_clients)


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

    def __call__(self, samples: Samples, num_clients: int, seed: int) -> Partition:
        labels = class_labels(samples)
        class_sizes = np.bincount(labels)
        kinds, num_classes, unit = self.biased + self.unbiased, len(class_sizes), class_sizes // num_clients
        width = self.labels_per_client or max(1, num_classes // 5)
        num_biased, groups = self.biased * num_clients // kinds, num_classes // width
        divides = groups * width == num_classes and (self.labels_per_client or groups == 5)
        if num_clients % kinds or not divides or num_biased % groups or unit.min() == 0:
            raise ValueError(
                f"{self} cannot divide {num_classes} classes over {num_clients} clients: num_clients must be a multiple of {kinds}, "
                f"labels_per_client a divisor of the number of classes, the number of biased clients a multiple of the {groups} groups of "
                "labels, and each class needs a sample for every client"
            )
        counts = np.tile(unit, (num_clients, 1))
        group_of_label = np.arange(num_classes) // width
        own = np.arange(num_biased)[:, None] % groups == group_of_label
        counts[:num_biased] = np.where(own, groups * unit, 0)
        return deal(labels, counts, seeded_rng(seed))
