"""Every client's samples, and the batches that it makes of them in a round. Imports nothing of flcog's: ``benchmarks/`` reads it, too."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Batches:
    """Every client's samples, and the batches that it makes of them in a round.

    The order is a function of the round and the client, so that every program trains the same batches.

    Args:
        leaves: tensors of samples in order of clients: the inputs, then the targets.
        offsets: client k's samples are rows ``offsets[k]`` to ``offsets[k + 1]``.
        layouts: for each number of samples, where a client's batches start in its shuffled passes, their sizes, and the number
            of passes.
    """

    leaves: list[Tensor]
    offsets: list[int]
    layouts: dict[int, tuple[list[int], list[int], int]]

    @property
    def num_clients(self) -> int:
        return len(self.offsets) - 1

    def num_samples(self, client: int) -> int:
        return self.offsets[client + 1] - self.offsets[client]

    def samples(self, client: int) -> list[Tensor]:
        return [leaf[self.offsets[client] : self.offsets[client + 1]] for leaf in self.leaves]

    def order(self, round: int, client: int) -> Tensor:
        """Return positions of the client's samples, shuffled separately for each pass."""
        size, draws = self.num_samples(client), torch.Generator().manual_seed(round * self.num_clients + client)
        return torch.cat([torch.randperm(size, generator=draws) for _ in range(self.layouts[size][2])])

    def of(self, round: int, client: int) -> Iterator[list[Tensor]]:
        """The client's batches of a round. All are gathered at once, and sliced."""
        starts, sizes, _ = self.layouts[self.num_samples(client)]
        order = self.order(round, client)[: starts[-1] + sizes[-1]].to(self.leaves[0].device)
        shuffled = [leaf[order] for leaf in self.samples(client)]
        for start, size in zip(starts, sizes, strict=True):
            yield [leaf[start : start + size] for leaf in shuffled]

    def to(self, device: str) -> "Batches":
        return Batches([leaf.to(device) for leaf in self.leaves], self.offsets, self.layouts)
