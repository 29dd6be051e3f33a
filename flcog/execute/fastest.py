"""Several executors timed on the first round's own clients, of which the fastest runs them from then on."""

import dataclasses
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from typing import NamedTuple

from flcog.client.executor import Assignment, Executor, Result, longest_first
from flcog.core.text import seconds
from flcog.method import ExecutorNote, Notes
from flcog.settings import Compile

BUDGET = 2.0
"""Seconds after the first step of all, after which no further executor is tried."""

TRIAL_STEPS = 6
"""Local steps of a trial; what the others take is worked out."""


class Choice(NamedTuple):
    """An executor as checkpoints and ``run.yaml`` name it."""

    name: str
    clients_at_once: int
    compiled: Compile = False

    def __str__(self) -> str:
        how = f"{self.name}, {self.clients_at_once} client{'s' * (self.clients_at_once > 1)} at a time"
        return f"{how}, {'CUDA graphs' if self.compiled == 'graphs' else 'compiled'}" if self.compiled else how


LONG = 0.25
"""Seconds of a trial's first step from which on it is mostly the step itself, and no further one is run."""

Times = dict[Choice, float]
"""Seconds that a client takes."""


class FastestExecutor:
    """Whichever executor is fastest: all are timed in the first round, before it is run.

    Executors round differently, so a run whose executor was measured is repeated to the bit only with the same choice. A checkpoint
    holds it, and a run that goes on measures nothing.

    Args:
        choices: what to try; the first is the loop, one client at a time, which can run anything.
        compiled: what more to try, compiled, once it is known what these take; compiling takes its time beyond the seconds of the trial.
        make: makes the executor of a choice.
        agree: makes all processes take the first one's choice.
        notes: where a note says what was chosen, with the figures.
    """

    def __init__(
        self,
        choices: Sequence[Choice],
        compiled: Callable[[Times], Sequence[Choice]],
        make: Callable[[Choice], Executor],
        agree: Callable[[tuple[Choice, str]], tuple[Choice, str]],
        notes: Notes,
    ) -> None:
        self._choices, self._compiled, self._make, self._agree, self._notes = choices, compiled, make, agree, notes
        self._executor: Executor | None = None
        self._made: dict[Choice, Executor] = {}
        notes.add(ExecutorNote(f"the fastest, timed in round 1, of {'; '.join(map(str, choices))}"))

    @property
    def name(self) -> str:
        return "fastest" if self._executor is None else self._executor.name

    @property
    def clients_at_once(self) -> int:
        return 1 if self._executor is None else self._executor.clients_at_once

    @property
    def compiled(self) -> Compile:
        return False if self._executor is None else self._executor.compiled

    @property
    def choice(self) -> Choice | None:
        """What was chosen, once it is."""
        return None if self._executor is None else Choice(self.name, self.clients_at_once, self.compiled)

    def settle(self, choice: Choice, why: str) -> None:
        """Take an executor for good."""
        self._executor = self._made.get(choice) or self._make(choice)
        self._made.clear()
        self._notes.add(ExecutorNote(f"{choice} ({why})"))

    def run(self, assignment: Assignment) -> Generator[Result, None, None]:
        if self._executor is None:
            self.settle(*self._agree(self._measured(assignment)))
        assert self._executor is not None
        yield from self._executor.run(assignment)

    def _measured(self, assignment: Assignment) -> tuple[Choice, str]:
        """The fastest, and the figures."""
        if not assignment.works:
            return self._choices[0], "no client to measure with"
        loop, *_ = self._choices
        with suppress(Exception):  # it fails again below, which is told
            _time(self._make(loop), assignment, 1, 1)
        # Not before: a device's libraries, which the first step of all loads, may take longer than all trials together.
        began, times, figures = time.perf_counter(), Times(), list[str]()
        for choice in self._choices:
            if times and time.perf_counter() - began > BUDGET:
                figures.append(f"{choice}: not tried, {BUDGET:.0f} s were up")
            else:
                figures.append(self._tried(choice, assignment, times, is_warm=choice is loop))
        for choice in self._compiled(times):
            figures.append(self._tried(choice, assignment, times))
        # Where not even the loop runs, it does so again in the round itself, and its error is the user's.
        best = min(times, key=lambda choice: times[choice], default=self._choices[0])
        return best, f"time of a client: {'; '.join(figures)}"

    def _tried(self, choice: Choice, assignment: Assignment, times: Times, is_warm: bool = False) -> str:
        """What a client takes in words, and in ``times`` if it can be run so; ``is_warm`` if a step has been run so already."""
        try:
            executor = self._make(choice)
            taken = _seconds_per_client(executor, assignment, is_warm)
        except Exception as error:  # memory that ran out, or a program that cannot be batched
            return f"{choice}: fails ({(str(error) or type(error).__name__).splitlines()[0]})"
        if executor.compiled != choice.compiled:
            return f"{choice}: fails"  # which it has said
        # Fewer where memory ran out, or where chunks are to be alike.
        choice = choice._replace(clients_at_once=executor.clients_at_once)
        if choice.compiled:
            self._made[choice] = executor  # or it would be compiled again
        times[choice] = taken
        return f"{choice}: {seconds(taken)}"


def _seconds_per_client(executor: Executor, assignment: Assignment, is_warm: bool) -> float:
    """What a client of mean length takes, worked out from a short trial's seconds at the beginning and for each step."""
    works = longest_first(assignment.works)[: executor.clients_at_once]
    steps = min(TRIAL_STEPS, works[0].num_steps)
    if not is_warm:  # the first time costs more: libraries choose kernels, memory is asked for
        _time(executor, assignment, len(works), 1)
    start = each = _time(executor, assignment, len(works), 1)
    if start < LONG and steps > 1:
        each = max(0.0, _time(executor, assignment, len(works), steps) - start) / (steps - 1)
    mean = sum(work.num_steps for work in assignment.works) / len(assignment.works)
    return (start + each * (mean - 1)) / len(works)


def _time(executor: Executor, assignment: Assignment, clients: int, steps: int) -> float:
    """Seconds for the first steps of some clients."""
    works = [
        dataclasses.replace(work, num_steps=min(steps, work.num_steps)) for work in longest_first(assignment.works)[:clients]
    ]
    began = time.perf_counter()
    for result in executor.run(assignment._replace(works=works)):
        result.envelope.measured["loss"].sum().item()  # an accelerator has done it once this is known
    return time.perf_counter() - began
