"""The loop on threads: several clients at a time in one process, each with a copy of the model."""

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

from flcog.apply import ModelFunction
from flcog.client.executor import Assignment, Result, Stopped, longest_first
from flcog.client.work import ClientWork
from flcog.execute.compiled_loop import CompiledLoop
from flcog.execute.loop import LoopExecutor
from flcog.execute.pace import Pace


class ThreadedLoop(LoopExecutor):
    """Several clients at a time, with the same numbers as one at a time.

    torch splits one small batch badly over cores, and clients well: they share nothing until they are added up, and torch holds
    Python's lock between kernels only. Results come in the loop's own order, so sums do too.

    What a client draws from torch's *global* stream (a method that breaks the rule that its draws are made in ``draw``) would depend on
    who runs beside it. Such a client is run again, and from there on one at a time.

    Args:
        model: the client's model.
        optimizer: the module's own optimiser.
        clients_at_once: how many threads.
        threads_each: how many threads torch may use for each client.
        tries_one: whether one client at a time is tried too, where steps are short; on as many threads, so the numbers stay.
        make: makes the loop that runs on a thread.
    """

    def __init__(
        self,
        model: ModelFunction,
        optimizer: torch.optim.Optimizer,
        clients_at_once: int,
        threads_each: int,
        tries_one: bool = False,
        make: Callable[..., LoopExecutor | CompiledLoop] = LoopExecutor,
    ) -> None:
        super().__init__(model, optimizer)
        self.clients_at_once, self._make = clients_at_once, make
        self._loops = [self._copy() for _ in range(clients_at_once)]
        self.compiled = self._loops[0].compiled
        self._free: SimpleQueue[LoopExecutor | CompiledLoop] = SimpleQueue()
        for loop in self._loops:
            self._free.put(loop)
        self._pool = ThreadPoolExecutor(clients_at_once, "client", torch.set_num_threads, (threads_each,))
        self._stop = threading.Event()
        self._one_at_a_time = False
        self._pace = Pace(clients_at_once) if tries_one else None
        self._work: list[float] = []

    def _copy(self) -> LoopExecutor | CompiledLoop:
        # Together, so that the copied optimiser's parameters are the copied module's.
        module, optimizer = self.model.copy_of((self.model.module, self.optimizer))
        loop = self._make(ModelFunction(module, self.model.autocast), optimizer, seeds_torch=False)
        loop.own_steps = self.own_steps  # which says once what all copies have to say
        return loop

    def run(self, assignment: Assignment) -> Generator[Result, None, None]:
        works, done = longest_first(assignment.works), 0
        if not self._one_at_a_time:
            began = time.perf_counter()
            with closing(self._together(assignment, works)) as results:
                for result in results:
                    done += 1
                    yield result
            if done == len(works):
                self._note_time(time.perf_counter() - began, works)
                return
            self._one_at_a_time = True
            warnings.warn(
                f"client {works[done].client} of round {assignment.round + 1} or one beside it drew from torch's global stream: clients "
                "run one at a time from here on, so that the run can be repeated; let the method make its draws in its draw hook",
                stacklevel=2,
            )
        yield from super().run(assignment._replace(works=works[done:]))

    def _note_time(self, seconds: float, works: list[ClientWork]) -> None:
        if self._pace is not None and works:
            self._pace.took(seconds, sum(self._work), sum(work.num_steps for work in works))
            self.clients_at_once = self._pace.settled or self.clients_at_once

    def _together(self, assignment: Assignment, works: list[ClientWork]) -> Generator[Result, None, None]:
        """Clients' results in order, until one has drawn from the global stream."""
        self._stop.clear()
        self._work.clear()
        stream = torch.default_generator.get_state()
        waiting, running = iter(works), deque[Future[Result]]()
        at_once = len(self._loops) if self._pace is None else self._pace.at_once
        resting = [self._free.get() for _ in self._loops[at_once:]]
        try:
            for _ in works:
                # Some ahead, so that nobody waits for a slow client; not all, or every client's update would be in memory.
                ahead = itertools.islice(waiting, 4 * self.clients_at_once - len(running))
                running.extend(self._pool.submit(self._client_alone, assignment, work) for work in ahead)
                result = self._next(running)
                if not torch.equal(torch.default_generator.get_state(), stream):
                    return
                yield result
        finally:
            self._stop.set()
            wait(running)
            for loop in resting:
                self._free.put(loop)

    def _next(self, running: deque[Future[Result]]) -> Result:
        """The first client's result, or whatever made one of them fail."""
        try:
            return running.popleft().result()
        except Stopped:
            errors = [future.exception() for future in running]
            raise next(error for error in errors if error is not None and not isinstance(error, Stopped)) from None

    def _client_alone(self, assignment: Assignment, work: ClientWork) -> Result:
        loop, began = self._free.get(), time.thread_time()
        try:
            if self._stop.is_set():
                raise Stopped
            program = dataclasses.replace(assignment.program, model=loop.model)
            return next(loop.run(assignment._replace(program=program, works=[work], stop=self._stop)))
        except BaseException:
            self._stop.set()
            raise
        finally:
            self._work.append(time.thread_time() - began)
            self._free.put(loop)
