"""The placements: one chunk of clients after another, on threads, or on a GPU's streams; and the one that a choice names."""

from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import nullcontext
from functools import partial

import torch

from flcog.client.executor import Assignment, Choice, Result
from flcog.client.work import ClientWork
from flcog.execute.batched_layers import batched_layers
from flcog.execute.compiled_steps import CompiledSteps
from flcog.execute.graphs import Graphs
from flcog.execute.job import Job
from flcog.execute.memory import attempt, back_off
from flcog.execute.one_client import OneClient
from flcog.execute.plain_steps import PlainSteps, Steps
from flcog.execute.programs import Programs
from flcog.execute.stacked_clients import StackedClients
from flcog.execute.threads import Threads
from flcog.execute.trainer import ClientTrainer, Learner
from flcog.method import Notes


class Chunks:
    """Trains one chunk of clients after another: a chunk of one client by itself, or many stacked clients as one program.

    The sequential placement, which trains one client at a time, is the oracle for all others. If memory runs out, the chunks that
    follow have half as many clients.
    """

    def __init__(self, trainer: ClientTrainer, clients_at_once: int = 1, name: str = "loop") -> None:
        self.trainer, self.clients_at_once, self.name = trainer, clients_at_once, name
        self._has_reduced = False

    def run(self, assignment: Assignment) -> Generator[Result, None, None]:
        for group in self.trainer.groups(assignment.works):
            done = 0
            while done < len(group):
                chunk = group[done : done + self.clients_at_once]
                self.trainer.announce(assignment, group[done + len(chunk) :][: len(chunk)])
                # Reduced once: if memory runs out again, another program took it, or a single client does not fit.
                if len(chunk) == 1 or self._has_reduced:
                    result: Result | None = self.trainer.train(assignment, chunk)
                else:
                    result = attempt(partial(self.trainer.train, assignment, chunk), may_retry=True)
                if result is None:
                    self._reduce(len(chunk))
                else:
                    done += len(chunk)
                    yield result

    def _reduce(self, too_many: int) -> None:
        """Halve the chunk size after memory ran out."""
        assert isinstance(self.trainer, StackedClients)  # others train one client at a time
        self.clients_at_once, self._has_reduced = too_many // 2, True
        back_off(self.name, too_many, self.clients_at_once, partial(self.trainer.steps.reduce, self.clients_at_once))


class Streams:
    """Trains several clients at a time, each on a stream of its own.

    The kernels are the plain loop's, without grouped convolutions. The GPU receives whole steps, and if the kernels of one client
    leave it partly idle, the kernels of another client run beside them.
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


AnyPlacement = Chunks | Threads | Streams
"""A placement with its ``trainer``, whose steps may be compiled."""


def make_placement(job: Job, choice: Choice, notes: Notes, logs: Sequence[str] = ()) -> AnyPlacement:
    """The placement and the steps that a choice names.

    ``logs`` are the columns that a module's own step logs: the sums of compiled steps must exist before the first step.
    """
    name, at_once, compiled = choice
    if name == "lightning":
        return Chunks(job.lightning(Learner(job.model, job.client.optimizer)), name=name)
    layers = nullcontext if name == "loop" else batched_layers(job.model, name == "vmap-patches")
    learner = Learner(job.model, job.client.optimizer, layers, logs=logs if compiled and job.model.trains_itself else ())
    if name != "loop":
        programs = Graphs(notes) if compiled == "graphs" else Programs(notes)
        steps: Steps = CompiledSteps(learner, programs, at_once, job.rows) if compiled else PlainSteps(learner)
        return Chunks(StackedClients(learner, steps), at_once, name)
    if compiled == "graphs":
        lanes = CompiledSteps(learner, Graphs(notes), 1, job.rows, at_once)
        return Streams(StackedClients(learner, lanes), lanes, at_once)
    programs = Programs(notes)

    def make(learner: Learner) -> ClientTrainer:
        if not compiled:
            return OneClient(learner)
        return StackedClients(learner, CompiledSteps(learner, programs, 1, job.rows))

    if at_once == 1:
        return Chunks(make(learner))
    return Threads(learner, at_once, max(1, torch.get_num_threads() // at_once), make, job.client.hooked)
