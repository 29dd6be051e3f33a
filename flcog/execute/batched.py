"""The batched placement: many clients train as one program."""

from collections.abc import Generator
from functools import partial

from flcog.client.executor import Assignment, Result
from flcog.execute.memory import attempt, back_off
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
                # Reduced once: if memory runs out again, another program took it, or a single client does not fit.
                result = attempt(partial(self.trainer.train, assignment, chunk), len(chunk) > 1 and not self._has_reduced)
                if result is None:
                    self._reduce(len(chunk))
                else:
                    done += len(chunk)
                    yield result

    def _reduce(self, too_many: int) -> None:
        """Halve the chunk size after memory ran out."""
        self.clients_at_once, self._has_reduced = too_many // 2, True
        back_off(self.name, too_many, self.clients_at_once, partial(self.trainer.steps.reduce, self.clients_at_once))
