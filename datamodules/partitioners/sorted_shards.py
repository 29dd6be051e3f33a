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
    """

    shards_per_client: int = 2

    def __post_init__(self) -> None:
        at_least(self, 1, "shards_per_client")

    def __call__(self, samples: Samples, num_clients: int, seed: int) -> Partition:
        count = num_clients * self.shards_per_client
        if not 1 <= count <= len(samples):
            raise ValueError(
                f"{len(samples)} samples cannot be cut into {count} shards ({num_clients} clients, {self.shards_per_client} shards each): "
                "lower num_clients or shards_per_client"
            )
        client_of_shard = seeded_rng(seed).permutation(np.repeat(np.arange(num_clients), self.shards_per_client))
        client_of_sample = np.empty(len(samples), np.int64)
        by_label = np.argsort(class_labels(samples), kind="stable")
        client_of_sample[by_label] = np.repeat(client_of_shard, even_sizes(len(samples), count))
        return Partition.from_assignment(client_of_sample, num_clients)
