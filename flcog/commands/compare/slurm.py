"""Trains the runs of a table as jobs of a Slurm cluster: submits them, submits interrupted ones again, and collects the results."""

import signal
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from flcog.commands.compare.plan import Cell
from flcog.commands.compare.slurm_job import LOGS, end_of
from flcog.commands.compare.slurm_queue import Queue, name_in_folder, name_of
from flcog.core import signals
from flcog.core.writer_lock import WriterLock, without_advice

LOOK_EVERY = 5.0
"""Seconds between two looks at the queue."""

RETRIES = 3
"""The number of times in a row that a job is submitted again although it has finished no further round."""


@dataclass
class _Watched:
    """A cell with a job in the queue, or about to have one.

    Args:
        cell: the cell.
        lock: held by this comparison, so that no other one submits the cell.
        job: the number of its job; None before it has one.
        rounds: the finished rounds when its job was last submitted.
        tries: the number of times in a row that its job ended without a further round.
        missing: whether the last look found neither the job nor its result, which a shared file system may show later.
    """

    cell: Cell
    lock: WriterLock
    job: str | None = None
    rounds: int = 0
    tries: int = 0
    missing: bool = False
    began: float = field(default_factory=time.monotonic)


class SlurmRunner:
    """Runs each cell as a job, and has the interface of ``Runner``. A job that was stopped is submitted again and resumes its run.

    Jobs continue if this process ends in any way. The next one finds them in the queue by their names.

    Args:
        jobs: the number of jobs in the queue at a time.
        queue: the queue.
        known: finished runs by their identities, which are not run again.
    """

    def __init__(self, jobs: int, queue: Queue, known: dict[str, Path]) -> None:
        self.jobs, self.known, self._queue = jobs, dict(known), queue
        self.signal = 0
        """The signal that has stopped it; 0 for none."""
        self._watched: list[_Watched] = []
        self._stopped, self._answers = threading.Event(), True
        self._terminals = signals.terminals()

    def run(self, todo: Sequence[Cell]) -> Iterator[tuple[Cell, float]]:
        """Yield each cell at its end, with its seconds. A failed cell has an ``error``."""
        waiting = list(todo)
        try:
            while (waiting or self._watched) and not self._stopped.is_set():
                if (jobs := self._jobs()) is not None:
                    yield from self._begin(waiting)
                    for watched in list(self._watched):
                        if not self._stopped.is_set() and self._has_ended(watched, jobs):
                            self._watched.remove(watched)
                            watched.lock.release()
                            yield watched.cell, time.monotonic() - watched.began
                if waiting or self._watched:
                    self._stopped.wait(LOOK_EVERY)
        finally:
            for watched in self._watched:
                watched.lock.release()

    def in_hand(self) -> list[Cell]:
        """The cells that have jobs."""
        return [watched.cell for watched in self._watched]

    def stop(self, number: int, _: FrameType | None) -> None:
        """Handle a signal: stop watching, and leave the jobs in the queue."""
        self.signal = number
        self._stopped.set()
        if number == signal.SIGHUP:
            signals.leave_dead_terminals(self._terminals)
        jobs = " ".join(watched.job for watched in self._watched if watched.job)
        end = f"; scancel {jobs} ends them" if jobs else ""
        signals.say(f"{signals.name(number)}: submitted jobs continue, and the same command collects their results{end}")

    def _jobs(self) -> dict[str, str] | None:
        """The queue. Prints a line when slurmctld stops answering."""
        jobs = self._queue.jobs()
        if jobs is None and self._answers:
            print("squeue gets no answer from slurmctld: waiting for it", flush=True)
        self._answers = jobs is not None
        return jobs

    def _begin(self, waiting: list[Cell]) -> Iterator[tuple[Cell, float]]:
        """Watch further cells, and yield each cell that needs no job."""
        while waiting and len(self._watched) < self.jobs:
            cell = waiting.pop(0)
            lock = WriterLock()
            cell.error = lock.take(cell.folder)
            if cell.error is None and not cell.finished and not (cell.identity in self.known and not cell.begun):
                self._watched.append(_Watched(cell, lock, rounds=len(cell.history())))
                continue
            if cell.error is not None and (busy := without_advice(cell.error)):
                cell.error, cell.busy = busy, True
            elif cell.error is None and not cell.finished:
                cell.files.take_from(self.known[cell.identity])
            lock.release()
            yield cell, 0.0

    def _has_ended(self, watched: _Watched, jobs: dict[str, str]) -> bool:
        """Follow a cell's job. Submits it if there is none, or if it was stopped."""
        cell, before = watched.cell, watched.job
        if (job := jobs.get(name_of(cell))) is not None:
            watched.job, watched.missing = job, False
            if before is None:
                print(f"{cell.name}: job {job} is in the queue", flush=True)
            return False
        if other := next((number for name, number in jobs.items() if name.startswith(name_in_folder(cell))), None):
            cell.error = f"job {other} in the queue trains this run with other settings: scancel {other}, or choose another --out"
            return True
        if before is None:
            self._submit(watched, "submitted as")
            return False
        end = end_of(cell.folder)
        if not cell.finished and end is None and not watched.missing:
            watched.missing = True
            return False
        if cell.finished:
            if cell.identity:
                self.known[cell.identity] = cell.folder
        elif end is not None and not end.was_stopped:
            cell.error = end.error
        elif not self._may_retry(watched):
            cell.error = (
                f"job {before} was stopped, and so were {RETRIES} before it without a new round: see {cell.folder / LOGS}"
            )
        else:
            self._submit(watched, f"job {before} was stopped after round {watched.rounds}, submitted again as")
            return False
        return True

    def _may_retry(self, watched: _Watched) -> bool:
        rounds = len(watched.cell.history())
        watched.tries = 0 if rounds > watched.rounds else watched.tries + 1
        watched.rounds = rounds
        return watched.tries <= RETRIES

    def _submit(self, watched: _Watched, how: str) -> None:
        try:
            watched.job, watched.missing = self._queue.submit(watched.cell), False
        except ValueError:
            if self._stopped.is_set():  # a terminal's Ctrl-C ends sbatch as well
                return
            raise
        if watched.job is not None:
            print(f"{watched.cell.name}: {how} job {watched.job}", flush=True)
