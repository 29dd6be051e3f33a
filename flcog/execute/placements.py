"""The placements: one chunk of clients after another, on threads, or on a GPU's streams; and the one that a choice names."""

import ctypes
import dataclasses
import itertools
import os
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import nullcontext
from queue import SimpleQueue

import torch

from flcog.client.executor import Assignment, Choice, Result, StopRequest, longest_first
from flcog.client.work import ClientWork
from flcog.execute.compiled_clients import CompiledClients
from flcog.execute.graphs import Graphs
from flcog.execute.job import Job
from flcog.execute.layers import batched_layers
from flcog.execute.one_client import ClientTrainer, Learner, OneClient
from flcog.execute.programs import Programs
from flcog.execute.stacked_clients import StackedClients
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
                result, began = None, time.perf_counter()
                try:
                    result = self.trainer.train(assignment, chunk).since(began)
                except torch.OutOfMemoryError:
                    # Reduced once: if memory runs out again, another program took it, or a single client does not fit.
                    if len(chunk) == 1 or self._has_reduced:
                        raise
                if result is None:  # Not in the block above, because the error keeps the clients' tensors alive until it is gone.
                    self._reduce(len(chunk))
                else:
                    done += len(chunk)
                    yield result

    def _reduce(self, too_many: int) -> None:
        """Halve the chunk size after memory ran out."""
        assert isinstance(self.trainer, StackedClients)  # others train one client at a time
        self.clients_at_once, self._has_reduced = too_many // 2, True
        warnings.warn(
            f"executor={self.name}: {too_many} clients at a time do not fit into memory, {self.clients_at_once} are tried from here "
            f"on; trainer.chunk_size={self.clients_at_once} says so from the start",
            stacklevel=2,
        )
        self.trainer.reduce(self.clients_at_once)
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


class Threads:
    """Trains several clients at a time, with the same numbers as one at a time.

    torch splits one small batch badly over cores, and clients well: clients share nothing until their changes are added up, and
    torch holds Python's lock only between kernels. Results come in the order of the sequential placement, so sums are the same.
    Each round copies the module again if it ``renews``, because hooks between rounds may have changed it.
    """

    name = "loop"

    def __init__(
        self,
        learner: Learner,
        clients_at_once: int,
        threads_each: int,
        make: Callable[[Learner], ClientTrainer],
        renews: bool = False,
    ) -> None:
        self._learner, self._make, self._renews = learner, make, renews
        self.clients_at_once, self._free = clients_at_once, SimpleQueue[ClientTrainer]()
        self._pool = ThreadPoolExecutor(clients_at_once, "client", torch.set_num_threads, (threads_each,))
        self._stop = threading.Event()
        self._copy()

    def _copy(self) -> None:
        """Make the trainers, each with a copy of the module."""
        trainers = [self._make(self._learner.on_thread()) for _ in range(self.clients_at_once)]
        self.trainer = trainers[0]
        """One of the trainers, which are alike."""
        self._free = SimpleQueue()
        for trainer in trainers:
            self._free.put(trainer)

    def run(self, assignment: Assignment) -> Generator[Result, None, None]:
        if self._renews:
            self._copy()
        self._stop.clear()
        works = longest_first(assignment.works)
        waiting, running = iter(works), deque[Future[Result]]()
        try:
            for _ in works:
                # Start some clients ahead, so that no thread waits for a slow client. Not all, or every result would be in memory.
                ahead = itertools.islice(waiting, 4 * self.clients_at_once - len(running))
                running.extend(self._pool.submit(self._train, assignment, work) for work in ahead)
                yield self._next(running)
        finally:
            self._stop.set()
            wait(running)

    def _next(self, running: deque[Future[Result]]) -> Result:
        """The first client's result, or the error that made a client fail."""
        try:
            return running.popleft().result()
        except StopRequest:
            errors = [future.exception() for future in running]
            raise next(error for error in errors if error is not None and not isinstance(error, StopRequest)) from None

    def _train(self, assignment: Assignment, work: ClientWork) -> Result:
        """Train one client on the calling thread. An error ends the clients beside it."""
        trainer = self._free.get()
        try:
            if self._stop.is_set():
                raise StopRequest
            program = dataclasses.replace(assignment.program, model=trainer.learner.model)
            assignment = assignment._replace(program=program, works=[work], stop=self._stop)
            began = time.perf_counter()
            return trainer.train(assignment, [work]).since(began)
        except BaseException:
            self._stop.set()
            raise
        finally:
            self._free.put(trainer)


class Streams:
    """Trains several clients at a time, each on a stream of its own.

    The kernels are the plain loop's, without grouped convolutions. The GPU receives whole steps, and if the kernels of one client
    leave it partly idle, the kernels of another client run beside them.
    """

    name = "loop"

    def __init__(self, trainer: CompiledClients, clients_at_once: int) -> None:
        self.trainer, self.clients_at_once = trainer, clients_at_once

    def run(self, assignment: Assignment) -> Generator[Result, None, None]:
        running = deque[Callable[[], Result]]()
        for work in (work for group in self.trainer.groups(assignment.works) for work in group):
            running.append(self._launch(assignment, work))
            if len(running) == self.clients_at_once:
                yield running.popleft()()
        while running:
            yield running.popleft()()

    def _launch(self, assignment: Assignment, work: ClientWork) -> Callable[[], Result]:
        """Queue a client's steps on a stream, and return a function that waits for them."""
        works, collect, trainer, began = [work], None, self.trainer, time.perf_counter()
        with trainer.named(assignment, works):
            if trainer.fits(assignment, works):
                collect = trainer.launch(assignment, works, trainer.begin(assignment, works))
            if collect is None:
                result = trainer.train_chunk(assignment, works).since(began)
                return lambda: result

        def finished() -> Result:
            with trainer.named(assignment, works):
                return trainer.end(assignment, works, collect()).since(began)

        return finished


AnyPlacement = Chunks | Threads | Streams
"""A placement with its ``trainer``, whose steps may be compiled."""


def make_placement(job: Job, choice: Choice, notes: Notes, logs: Sequence[str] = ()) -> AnyPlacement:
    """The placement and the steps that a choice names.

    ``logs`` are the columns that a module's own step logs: the sums of compiled steps must exist before the first step.
    """
    keep_freed_memory()
    name, at_once, compiled = choice
    if name == "lightning":
        return Chunks(job.lightning(Learner(job.model, job.client.optimizer)), name=name)
    layers = nullcontext if name == "loop" else batched_layers(job.model, name == "vmap-patches")
    learner = Learner(job.model, job.client.optimizer, layers, logs=logs if compiled and job.model.trains_itself else ())
    programs = Graphs(notes) if compiled == "graphs" else Programs(notes)
    if name != "loop":
        stacked = CompiledClients(learner, programs, at_once, job.rows) if compiled else StackedClients(learner)
        return Chunks(stacked, at_once, name)
    if compiled == "graphs":
        return Streams(CompiledClients(learner, programs, 1, job.rows, at_once), at_once)

    def make(learner: Learner) -> ClientTrainer:
        return CompiledClients(learner, programs, 1, job.rows) if compiled else OneClient(learner)

    if at_once == 1:
        return Chunks(make(learner))
    return Threads(learner, at_once, max(1, torch.get_num_threads() // at_once), make, job.client.hooked)


M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # glibc's <malloc.h>


def keep_freed_memory() -> None:
    """Let glibc reuse the memory of freed tensors.

    Otherwise it returns the memory of tensors above some hundred KiB to the kernel, and each round pays for the same pages again: on two
    cores a round of configs/speed/softmax.yaml took 1.3 times as long.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if os.name == "posix" else None
    if mallopt:  # other C libraries have none
        mallopt(M_MMAP_THRESHOLD, 32 * 2**20)  # the largest that glibc accepts
        mallopt(M_TRIM_THRESHOLD, 2**31 - 1)
