"""The placement on streams: the plain step of one client is captured once for each CUDA stream, and replayed for all clients."""

from collections import deque
from collections.abc import Callable, Generator
from functools import partial

from flcog.client.executor import Assignment, Result
from flcog.client.work import ClientWork
from flcog.execute.compiled_steps import CompiledSteps
from flcog.execute.memory import attempt, back_off
from flcog.execute.stacked_clients import StackedClients


class Streams:
    """Trains several clients at a time, each on a stream of its own.

    The kernels are the plain loop's, without grouped convolutions. The GPU receives whole steps, and if the kernels of one client
    leave it partly idle, the kernels of another client run beside them.

    Args:
        trainer: trains one client.
        steps: the trainer's, which replay captured steps on as many lanes as clients train at a time.
        clients_at_once: the number of streams.
    """

    name = "loop"

    def __init__(self, trainer: StackedClients, steps: CompiledSteps, clients_at_once: int) -> None:
        self.trainer, self._steps, self.clients_at_once = trainer, steps, clients_at_once
        self._has_reduced = False

    def run(self, assignment: Assignment) -> Generator[Result, None, None]:
        running = deque[Callable[[], Result]]()
        for work in (work for group in self.trainer.groups(assignment.works) for work in group):
            collect = attempt(partial(self._launch, assignment, work), may_retry=bool(running) and not self._has_reduced)
            if collect is None:
                fits, tried = len(running), len(running) + 1
                while running:
                    yield running.popleft()()
                self._reduce(fits, tried)
                collect = self._launch(assignment, work)
            running.append(collect)
            if len(running) == self.clients_at_once:
                yield running.popleft()()
        while running:
            yield running.popleft()()

    def _launch(self, assignment: Assignment, work: ClientWork) -> Callable[[], Result]:
        """Queue a client's steps on a stream, and return a function that waits for them."""
        works, collect, result = [work], None, None
        with self.trainer.named(assignment, works):
            if self._steps.fits(assignment, works):
                collect = self._steps.launch(assignment, works, self.trainer.begin(assignment, works))
            if collect is None:
                result = self.trainer.train_chunk(assignment, works)

        def finished() -> Result:
            if collect is None:
                assert result is not None
                return result
            with self.trainer.named(assignment, works):
                return self.trainer.end(assignment, works, collect())

        return finished

    def _reduce(self, clients: int, too_many: int) -> None:
        """Use fewer streams after memory ran out. No client is training on any of them."""
        self.clients_at_once, self._has_reduced = clients, True
        back_off(self.name, too_many, clients, partial(self._steps.use_lanes, clients, clients))
