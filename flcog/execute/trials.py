"""Times several placements on the first round's own clients."""

import dataclasses
import time
from contextlib import suppress

from flcog.client.executor import Assignment, Choice, Placement, longest_first
from flcog.core.text import seconds
from flcog.execute.job import Job
from flcog.execute.placements import AnyPlacement, make_placement
from flcog.execute.plan import Plan, Times, compiled_choices
from flcog.method import Notes

BUDGET = 2.0
"""Further choices are tried for this many seconds after the very first step."""

TRIAL_STEPS = 6
"""Local steps of a trial; the time of further steps is extrapolated."""

LONG = 0.25
"""A trial whose first step takes at least this many seconds runs no further step, because most of this time is the step itself."""


class Trials:
    """Times the choices of a plan, each for a few steps. Compiled steps come last, and their compile time is not limited.

    Args:
        job: describes the model and the clients.
        plan: the choices; the first is the loop with one client at a time.
        notes: receives a note with the time that compiling took.
    """

    def __init__(self, job: Job, plan: Plan, notes: Notes) -> None:
        self._job, self._choices, self._notes = job, plan.choices, notes
        self.made: dict[Choice, AnyPlacement] = {}
        """The placements with compiled steps, which are kept because compiling takes long."""

    def fastest(self, assignment: Assignment) -> tuple[Choice, str]:
        """The fastest choice, and the measured times in words."""
        if not assignment.works:
            return self._choices[0], "no client to measure with"
        loop, *_ = self._choices
        with suppress(Exception):  # The same error comes again below, where it is reported.
            _time(make_placement(self._job, loop, self._notes), assignment, 1, 1)
        # The clock starts after the very first step, because loading a device's libraries may take longer than all trials together.
        began, times, figures = time.perf_counter(), Times(), list[str]()
        for choice in self._choices:
            if times and time.perf_counter() - began > BUDGET:
                figures.append(f"{choice}: not tried, {BUDGET:.0f} s were up")
            else:
                figures.append(self._tried(choice, assignment, times, is_warm=choice is loop))
        for choice in compiled_choices(self._job, times):
            figures.append(self._tried(choice, assignment, times))
        # If even the loop fails, it fails again in the round itself, and the user sees that error.
        best = min(times, key=lambda choice: times[choice], default=self._choices[0])
        return best, f"time of a client: {'; '.join(figures)}"

    def _tried(self, choice: Choice, assignment: Assignment, times: Times, is_warm: bool = False) -> str:
        """Time a choice and return the result in words.

        Args:
            choice: to try.
            assignment: the first round's.
            times: receives the time, if the choice works.
            is_warm: whether a step has run with this choice before.
        """
        try:
            placement = make_placement(self._job, choice, self._notes)
            taken = _seconds_per_client(placement, assignment, is_warm)
        except Exception as error:  # Memory ran out, or the program cannot be batched.
            return f"{choice}: fails ({(str(error) or type(error).__name__).splitlines()[0]})"
        if placement.trainer.compiled != choice.compiled:
            return f"{choice}: fails"  # A warning has said why.
        choice = choice._replace(clients_at_once=placement.clients_at_once)  # fewer if memory ran out
        if choice.compiled:
            self.made[choice] = placement
        times[choice] = taken
        return f"{choice}: {seconds(taken)}"


def _seconds_per_client(placement: Placement, assignment: Assignment, is_warm: bool) -> float:
    """The seconds for a client of mean length, extrapolated from the times of one step and of a few."""
    works = longest_first(assignment.works)[: placement.clients_at_once]
    steps = min(TRIAL_STEPS, works[0].num_steps)
    if not is_warm:  # The first run takes longer: libraries choose kernels and allocate memory.
        _time(placement, assignment, len(works), 1)
    start = each = _time(placement, assignment, len(works), 1)
    if start < LONG and steps > 1:
        each = max(0.0, _time(placement, assignment, len(works), steps) - start) / (steps - 1)
    mean = sum(work.num_steps for work in assignment.works) / len(assignment.works)
    return (start + each * (mean - 1)) / len(works)


def _time(placement: Placement, assignment: Assignment, clients: int, steps: int) -> float:
    """Seconds for the first steps of some clients."""
    works = [
        dataclasses.replace(work, num_steps=min(steps, work.num_steps)) for work in longest_first(assignment.works)[:clients]
    ]
    began = time.perf_counter()
    for result in placement.run(assignment._replace(works=works)):
        result.envelope.measured["loss"].sum().item()  # waits for an accelerator
    return time.perf_counter() - began
