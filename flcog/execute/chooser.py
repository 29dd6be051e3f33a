"""The executor of a run: it holds the placement that was chosen, and replaces it where the choice proves wrong."""

import time
import warnings
from collections.abc import Callable, Generator
from typing import Literal

from flcog.client.executor import Assignment, Choice, Result
from flcog.core.processes import Processes
from flcog.execute.job import Job
from flcog.execute.pace import Pace
from flcog.execute.placements import AnyPlacement, make_placement
from flcog.execute.plan import Plan, compilable, loop_plan, plan_for
from flcog.execute.threads import Threads
from flcog.execute.trials import Trials
from flcog.method import ExecutorNote, MemoryNote, Notes
from flcog.settings import Compile


def choose_executor(
    job: Job, wanted: Literal["auto", "loop", "vmap", "vmap-patches", "fastest"], notes: Notes, processes: Processes
) -> "ChosenExecutor":
    """The executor for a job; a note says why it was chosen.

    Args:
        job: describes the model and the clients.
        wanted: the user's setting.
        notes: receives the note.
        processes: which must all make the same choice.
    """
    job = compilable(job)
    return ChosenExecutor(job, plan_for(job, wanted), notes, processes.agree)


class ChosenExecutor:
    """Runs clients by a plan: with one placement, or with the fastest of several, which are timed in the first round.

    - **Trials.** Placements round differently, so a run that timed them repeats to the bit only with the same choice. Its checkpoint
      stores the choice, and a resumed run times nothing.
    - **Fallback.** torch has no error of its own for a program that cannot be batched. So a batched program whose first chunk fails
      is replaced by the loop. If the loop fails too, the user sees that error, which names the client and the local step. A program
      that has run once is never replaced: a later error (memory that ran out, say) is no reason to change the rounding.
    - **Pace.** Threads give the same numbers however many of them work, so a run's own first rounds show whether one is as fast.

    Args:
        job: describes the model and the clients.
        plan: the choices.
        notes: receives the choice, where it was not the user's.
        agree: makes all processes take over the first one's choice.
    """

    def __init__(self, job: Job, plan: Plan, notes: Notes, agree: Callable[[tuple[Choice, str]], tuple[Choice, str]]) -> None:
        self._job, self._plan, self._notes, self._agree = job, plan, notes, agree
        self.placement: AnyPlacement | None = None
        """The placement, once it has been chosen."""
        self._trials = Trials(job, plan, notes) if plan.timed else None
        notes.add(ExecutorNote(plan.note))
        if not plan.timed:
            self._place(make_placement(job, plan.choices[0], notes), plan)

    def _place(self, placement: AnyPlacement, plan: Plan) -> None:
        self.placement, self._pace = placement, Pace(placement.clients_at_once) if plan.tries_one else None
        self._may_fail = placement.name != "loop" and not plan.timed

    @property
    def name(self) -> str:
        return self.placement.name if self.placement else "fastest"

    @property
    def clients_at_once(self) -> int:
        return self.placement.clients_at_once if self.placement else 1

    @property
    def compiled(self) -> Compile:
        return self.placement.trainer.compiled if self.placement else False

    @property
    def choice(self) -> Choice | None:
        if self.placement is None or not self._plan.varies:
            return None
        return Choice(self.name, self.clients_at_once, self.compiled)

    def settle(self, choice: Choice, why: str) -> None:
        if not self._plan.varies or choice == self.choice:
            return
        if self._trials:
            placement = self._trials.made.pop(choice, None) or make_placement(self._job, choice, self._notes)
            self._trials.made.clear()
            self._notes.add(ExecutorNote(f"{choice} ({why})"))
            self._place(placement, self._plan)
        elif choice.name == "loop":  # The first run had too little memory; there may be more now, but rounding must not change.
            plan = loop_plan(self._job, why)
            self._notes.add(ExecutorNote(plan.note))
            self._place(make_placement(self._job, plan.choices[0], self._notes), plan)
        elif choice.name == self.name:
            self._notes.add(MemoryNote(f"{choice.clients_at_once} clients at a time, {why}"))
            own = choice._replace(compiled=self._job.compile)
            self._place(make_placement(self._job, own, self._notes), self._plan)

    def run(self, assignment: Assignment) -> Generator[Result, None, None]:
        if self.placement is None:
            assert self._trials is not None
            self.settle(*self._agree(self._trials.fastest(assignment)))
        assert self.placement is not None
        if self._may_fail:
            yield from self._run_or_fall_back(self.placement, assignment)
        elif self._pace is not None and isinstance(self.placement, Threads):
            yield from self._run_and_time(self.placement, self._pace, assignment)
        else:
            yield from self.placement.run(assignment)

    def _run_or_fall_back(self, placement: AnyPlacement, assignment: Assignment) -> Generator[Result, None, None]:
        """The results of a batched program that has not run yet, or of the loop."""
        results, first, reason = placement.run(assignment), None, ""
        try:
            first = next(results, None)
        except RuntimeError as error:
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        if reason:  # The loop starts after the block above, because the error keeps the chunk's tensors alive until it is gone.
            notes, plan = Notes(), loop_plan(self._job, reason)
            notes.add(ExecutorNote(plan.note))
            placement = make_placement(self._job, plan.choices[0], notes)
            results = placement.run(assignment)
            first = next(results, None)
            self._place(placement, plan)
            self._notes.add(*notes)
            warnings.warn(f"executor=vmap falls back to loop: this model or method cannot be vectorised ({reason})", stacklevel=2)
        self._may_fail = False
        if first is not None:
            yield first
            yield from results

    def _run_and_time(self, threads: Threads, pace: Pace, assignment: Assignment) -> Generator[Result, None, None]:
        """Run as many threads as the pace asks for, and report the time to it."""
        threads.working, began = pace.at_once, time.perf_counter()
        yield from threads.run(assignment)
        if assignment.works and not threads.drawn:
            steps = sum(work.num_steps for work in assignment.works)
            pace.took(time.perf_counter() - began, sum(threads.seconds_worked), steps)
            threads.clients_at_once = pace.settled or threads.clients_at_once
