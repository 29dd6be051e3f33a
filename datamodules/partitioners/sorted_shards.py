"""The first non-IID split of federated learning: sort by label, cut into shards, deal the shards."""

from dataclasses import dataclass

import numpy as np

from flcog.core.checks import at_least
from flcog.data import Partition, Partitioner, Samples
from flcog.datamodules.partitioners.draws import even_sizes, seeded_rng
from flcog.datamodules.partitioners.labels import class_labels


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
        at_least(self, 0, "uniform_clients")

    def __call__(self, samples: Samples, num_clients: int, seed: int) -> Partition:
        sorting = num_clients - self.uniform_clients
        if sorting < 1:
            raise ValueError(f"uniform_clients={self.uniform_clients} must be below the {num_clients} clients: lower it")
        rng, count = seeded_rng(seed), sorting * self.shards_per_client
        client_of_sample = np.empty(len(samples), np.int64)
        by_label = np.argsort(class_labels(samples), kind="stable")
        if self.uniform_clients:
            uniform = rng.permutation(len(samples))[: self.uniform_clients * (len(samples) // num_clients)]
            client_of_sample[uniform] = sorting + np.arange(len(uniform)) % self.uniform_clients
            by_label = by_label[~np.isin(by_label, uniform)]
        if not 1 <= count <= len(by_label):
            raise ValueError(
                f"{len(samples)} samples cannot be cut into {count} shards ({num_clients} clients, {self.shards_per_client} shards each): "
                "lower num_clients or shards_per_client"
            )
        client_of_shard = rng.permutation(np.repeat(np.arange(sorting), self.shards_per_client))
        client_of_sample[by_label] = np.repeat(client_of_shard, even_sizes(len(by_label), count))
        return Partition.from_assignment(client_of_sample, num_clients)
