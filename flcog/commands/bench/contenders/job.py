"""A contender's job: every client's samples and batches, a program that computes the loss, and the local optimiser."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

JOB, PROGRAM = "job.pt", "program.pt"


@dataclass(frozen=True)
class Batches:
    """Every client's samples, and the batches that it makes of them in a round.

    The order is a function of the round and the client, so that every framework trains the same batches.

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


@dataclass(frozen=True)
class ContenderJob:
    """Clients, optimiser and device of a contender.

    Args:
        batches: of all clients.
        cohort: how many clients take part in a round.
        optimizer: the local one's name in ``torch.optim``; each client begins a round with a new one.
        options: of the optimiser, the learning rate among them.
        device: cpu, cuda or mps.
        processes: how many processes flcog shares the clients among.
        cores: of this machine, for all of them.
    """

    batches: Batches
    cohort: int
    optimizer: str
    options: dict[str, Any]
    device: str
    processes: int
    cores: int

    def new_optimizer(self, parameters: Iterable[nn.Parameter], **changed: Any) -> torch.optim.Optimizer:
        optimizer: torch.optim.Optimizer = getattr(torch.optim, self.optimizer)(parameters, **(self.options | changed))
        return optimizer


def save(folder: Path, job: ContenderJob, program: nn.Module) -> None:
    """Write the files for :func:`load`."""
    torch.save(vars(job) | {"batches": vars(job.batches)}, folder / JOB)
    torch.save(program, folder / PROGRAM)


@cache
def load(folder: str) -> tuple[ContenderJob, nn.Module]:
    """The job, and the program: given the tensors of a batch, it returns their loss. Read once per process, on the job's device."""
    content = torch.load(Path(folder) / JOB, map_location="cpu", mmap=True, weights_only=True)
    job = ContenderJob(**content | {"batches": Batches(**content["batches"]).to(content["device"])})
    # This unpickles a module, which is safe because the bench that started this program has just written it.
    program = torch.load(Path(folder) / PROGRAM, map_location="cpu", weights_only=False)
    return job, program.to(job.device).train()
