"""The placement on threads: several clients train at a time in one process, each on a copy of the model."""

import dataclasses
import itertools
import threading
from collections import deque
from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from queue import SimpleQueue

import torch

from flcog.client.executor import Assignment, Result, StopRequest, longest_first
from flcog.client.work import ClientWork
from flcog.execute.trainer import ClientTrainer, Learner


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
            return trainer.train(assignment._replace(program=program, works=[work], stop=self._stop), [work])
        except BaseException:
            self._stop.set()
            raise
        finally:
            self._free.put(trainer)
