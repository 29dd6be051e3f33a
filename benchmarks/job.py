"""A contender's job: every client's samples and batches, a program that computes the loss, and the local optimiser."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import nn

try:
    from flcog.commands.bench.batches import Batches
except ImportError:  # in a Python without flcog, for which against.py puts the folder of this file on the path
    from batches import Batches  # type: ignore[import-not-found,no-redef]

JOB, PROGRAM = "job.pt", "program.pt"


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
