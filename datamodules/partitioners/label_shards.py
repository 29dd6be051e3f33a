"""A fixed number of labels per client, or one class per client."""

from dataclasses import dataclass

import numpy as np
from numpy.random import Generator

from flcog.core.checks import at_least
from flcog.data import Partition, Partitioner, Samples
from flcog.datamodules.partitioners.draws import deal, even_sizes, require_a_sample_each, seeded_rng
from flcog.datamodules.partitioners.labels import class_labels


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
        require_a_sample_each(len(samples), num_clients)
        labels, rng = class_labels(samples), seeded_rng(seed)
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
        held = self._held(num_clients, num_classes, rng)
        for label, size in enumerate(class_sizes):
            holders = np.flatnonzero(held[:, label])
            if size < len(holders):
                raise ValueError(
                    f"{len(holders)} clients share class {label}, which has {size} samples: lower num_clients or "
                    "labels_per_client"
                )
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
