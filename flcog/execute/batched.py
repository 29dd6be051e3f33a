"""The batched placement: many clients train as one program."""

from collections.abc import Generator
from functools import partial

import torch

from flcog.client.executor import Assignment, Result
from flcog.client.work import ClientWork
from flcog.execute.memory import back_off
from flcog.execute.stacked_clients import StackedClients


class Batched:
    """Trains chunks of stacked clients. If memory runs out, the chunks that follow have half as many clients.

    Args:
        trainer: trains a chunk.
        clients_at_once: the number of clients in a chunk.
        name: ``vmap`` or ``vmap-patches``.
    """

    def __init__(self, trainer: StackedClients, clients_at_once: int, name: str = "vmap") -> None:
        self.trainer, self.clients_at_once, self.name = trainer, clients_at_once, name
        self._has_reduced = False

    def run(self, assignment: Assignment) -> Generator[Result, None, None]:
        for group in self.trainer.groups(assignment.works):
            done = 0
            while done < len(group):
                chunk = group[done : done + self.clients_at_once]
                self.trainer.announce(assignment, group[done + len(chunk) :][: len(chunk)])
                result = self._attempt(assignment, chunk)
                if result is None:
                    self._reduce(len(chunk))
                else:
                    done += len(chunk)
                    yield result

    def _attempt(self, assignment: Assignment, chunk: list[ClientWork]) -> Result | None:
        """The result of a chunk, or None if memory ran out and fewer clients may fit.

        The chunk size is reduced once: if memory runs out again, another program took it, or a single client does not fit.
        """
        try:
            return self.trainer.train(assignment, chunk)
        except torch.OutOfMemoryError:
            if len(chunk) == 1 or self._has_reduced:
                raise
            return (
                None  # The caller continues after this block, because the error keeps the chunk's tensors alive until it is gone.
            )

    def _reduce(self, too_many: int) -> None:
        """Halve the chunk size after memory ran out."""
        self.clients_at_once, self._has_reduced = too_many // 2, True
        back_off(self.name, too_many, self.clients_at_once, partial(self.trainer.steps.reduce, self.clients_at_once))
