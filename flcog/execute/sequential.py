"""The sequential placement: one client after another. All other placements must return the same results."""

from collections.abc import Generator

from flcog.client.executor import Assignment, Result
from flcog.execute.trainer import ClientTrainer


class Sequential:
    """Trains one client after another, the client with the most steps first.

    Args:
        trainer: trains a client.
        name: ``loop``, or ``lightning`` for Lightning's loops.
    """

    clients_at_once = 1

    def __init__(self, trainer: ClientTrainer, name: str = "loop") -> None:
        self.trainer, self.name = trainer, name

    def run(self, assignment: Assignment) -> Generator[Result, None, None]:
        works = [work for group in self.trainer.groups(assignment.works) for work in group]
        for position, work in enumerate(works):
            self.trainer.announce(assignment, works[position + 1 : position + 2])
            yield self.trainer.train(assignment, [work])
