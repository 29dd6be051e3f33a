"""A split that exists already: a partition read from a file."""

from dataclasses import dataclass
from pathlib import Path

from flcog.data import Partition, Partitioner, Samples


@dataclass(frozen=True)
class Saved(Partitioner):
    """A partition from a file that ``Partition.save`` wrote, for runs on a split that a paper cites.

    The file determines the number of clients, so neither ``num_clients`` nor the seed is used.

    Args:
        path: the ``.npz`` file.
        hash: the partition's hash; if it is given, the file must have it.
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
        return partition
