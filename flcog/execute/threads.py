"""The placement on threads: several clients train at a time in one process, each on a copy of the model."""

import dataclasses
import itertools
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import closing
from queue import SimpleQueue

import torch

from flcog.client.executor import Assignment, Result, StopRequest, longest_first
from flcog.client.work import ClientWork
from flcog.core.global_streams import draws_from, moved, streams
from flcog.execute.one_client import OneClient
from flcog.execute.sequential import Sequential
from flcog.execute.trainer import ClientTrainer, Learner


class Threads:
    """Trains several clients at a time, with the same numbers as one at a time.

    torch splits one small batch badly over cores, and clients well: clients share nothing until their changes are added up, and
    torch holds Python's lock only between kernels. Results come in the order of the sequential placement, so sums are the same.

    A client's draws from *global* random streams would depend on the clients that run beside it. (A method should draw in ``draw``.)
    After such a draw the client is run again, and from there on clients run one at a time.

    Args:
        learner: the model and the optimiser.
        clients_at_once: the number of threads.
        threads_each: how many threads torch may use for each client.
        make: makes a thread's trainer.
    """

    name = "loop"

    def __init__(
        self, learner: Learner, clients_at_once: int, threads_each: int, make: Callable[[Learner], ClientTrainer]
    ) -> None:
        self._alone = Sequential(OneClient(learner))
        self._trainers, self._free = [make(learner.on_thread()) for _ in range(clients_at_once)], SimpleQueue[ClientTrainer]()
        for trainer in self._trainers:
            self._free.put(trainer)
        self.trainer = self._trainers[0]
        """One of the trainers, which are alike."""
        self._pool = ThreadPoolExecutor(clients_at_once, "client", torch.set_num_threads, (threads_each,))
        self._stop = threading.Event()
        self.clients_at_once = self.working = clients_at_once
        """``working`` is the number of threads that train in the next round."""
        self.drawn: list[str] = []
        """The libraries whose global random streams a client has used: from then on, clients run one at a time."""
        self.seconds_worked: list[float] = []
        """The processor time that each client took in the last round."""

    def run(self, assignment: Assignment) -> Generator[Result, None, None]:
        works, done = longest_first(assignment.works), 0
        if not self.drawn:
            with closing(self._together(assignment, works)) as results:
                for result in results:
                    done += 1
                    yield result
            if done == len(works):
                return
            warnings.warn(
                f"client {works[done].client} of round {assignment.round + 1} or one beside it {draws_from(self.drawn)}: clients "
                "run one at a time from here on, so that the run can be repeated; let the method make its draws in its draw hook",
                stacklevel=2,
            )
        yield from self._alone.run(assignment._replace(works=works[done:]))

    def _together(self, assignment: Assignment, works: list[ClientWork]) -> Generator[Result, None, None]:
        """The clients' results in order, until a client has drawn from the global stream."""
        self._stop.clear()
        self.seconds_worked.clear()
        before = streams()
        waiting, running = iter(works), deque[Future[Result]]()
        resting = [self._free.get() for _ in self._trainers[self.working :]]
        try:
            for _ in works:
                # Start some clients ahead, so that no thread waits for a slow client. Not all, or every result would be in memory.
                ahead = itertools.islice(waiting, 4 * self.clients_at_once - len(running))
                running.extend(self._pool.submit(self._train, assignment, work) for work in ahead)
                result = self._next(running)
                self.drawn = moved(before)
                if self.drawn:
                    return
                yield result
        finally:
            self._stop.set()
            wait(running)
            for trainer in resting:
                self._free.put(trainer)

    def _next(self, running: deque[Future[Result]]) -> Result:
        """The first client's result, or the error that made a client fail."""
        try:
            return running.popleft().result()
        except StopRequest:
            errors = [future.exception() for future in running]
            raise next(error for error in errors if error is not None and not isinstance(error, StopRequest)) from None

    def _train(self, assignment: Assignment, work: ClientWork) -> Result:
        """Train one client on the calling thread. An error ends the clients beside it."""
        trainer, began = self._free.get(), time.thread_time()
        try:
            if self._stop.is_set():
                raise StopRequest
            program = dataclasses.replace(assignment.program, model=trainer.learner.model)
            return trainer.train(assignment._replace(program=program, works=[work], stop=self._stop), [work])
        except BaseException:
            self._stop.set()
            raise
        finally:
            self.seconds_worked.append(time.thread_time() - began)
            self._free.put(trainer)
