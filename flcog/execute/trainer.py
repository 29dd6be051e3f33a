"""What all trainers of clients share: their base, the model with its optimiser, and the notes on errors."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from flcog.client.executor import Assignment, Result, longest_first
from flcog.client.work import ClientWork
from flcog.functional.model_function import ModelFunction
from flcog.functional.own_steps import among_rounds
from flcog.settings import Compile


@dataclass(frozen=True)
class Learner:
    """A client's model and optimiser, and the way in which they run.

    ``layers`` wraps layers that are slow or fail when they are batched. ``seeds_streams``: whether training seeds the global random
    streams, because users' modules may draw from them. ``logs`` are the columns of the values that a module's own step logs in compiled
    steps.
    """

    model: ModelFunction
    optimizer: torch.optim.Optimizer
    layers: Callable[[], AbstractContextManager[Any]] = nullcontext
    seeds_streams: bool = True
    logs: Sequence[str] = ()

    def on_thread(self) -> "Learner":
        """A copy for a thread."""
        # Copied together, so that the copied optimiser holds the copied module's parameters.
        module, optimizer = self.model.copy_of((self.model.module, self.optimizer))
        return Learner(self.model.on_copy(module), optimizer, self.layers, False, self.logs)


class ClientTrainer(ABC):
    """Trains clients from the broadcast model to their results. A placement calls it for one group of clients after another."""

    def __init__(self, learner: Learner) -> None:
        self.learner, self.model = learner, learner.model

    @property
    def compiled(self) -> Compile:
        """Whether local steps are compiled, or captured as CUDA graphs."""
        return False

    def groups(self, works: Sequence[ClientWork]) -> list[list[ClientWork]]:
        """Split a round's clients into groups that may be stacked, each sorted in training order."""
        return [longest_first(works)]

    @abstractmethod
    def announce(self, assignment: Assignment, works: Sequence[ClientWork]) -> None:
        """Tell the reader which clients train next, so that it can load their first samples meanwhile."""

    @abstractmethod
    def train(self, assignment: Assignment, works: Sequence[ClientWork]) -> Result:
        """Train the clients. An error carries a note that names the clients and the round."""


def own_steps(model: ModelFunction, round: int) -> AbstractContextManager[None]:
    """Let a module with a ``training_step`` of its own find the round's number while a client or a chunk trains."""
    return among_rounds(model.module, round) if model.trains_itself else nullcontext()


def add_note(error: Exception, assignment: Assignment, works: Sequence[ClientWork], where: str) -> None:
    """Add a note with the clients and the round to an error of their training, and the remedy if the cause is known."""
    if str(error).startswith("Expected more than 1 value per channel when training"):
        error.add_note(
            "BatchNorm cannot train on a batch of one sample: data.drop_last=True leaves out the last, smaller batch, or choose another "
            "data.batch_size"
        )
    clients = "client" + "s" * (len(works) > 1) + " " + ", ".join(str(work.client) for work in works)
    error.add_note(f"in {clients}, round {assignment.round + 1}{where}")
