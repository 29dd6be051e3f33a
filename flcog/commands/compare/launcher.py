"""Trains the unfinished runs of a table, several at a time, as processes of this machine. An interrupted run is resumed."""

import os
import signal
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import IO, NamedTuple

from flcog.commands.compare.results import best_of
from flcog.commands.compare.runs import OUTPUT, Run, joined
from flcog.commands.compare.table import Table
from flcog.commands.errors import shown_errors
from flcog.core import signals
from flcog.core.child_processes import started_by_us
from flcog.core.fabric import num_cores
from flcog.core.files import clear_errors, make_folder
from flcog.core.monitor import main_of
from flcog.core.output import never_failing, say
from flcog.core.text import clock, figure, seconds

NOT_FINITE = "is NaN or infinite"
"""A part of the error of a run whose model has diverged."""

StopEarly = Callable[[Run], bool]
"""Whether to stop a run that is being trained, because others are better."""


class Ended(NamedTuple):
    """The end of a run: its error, which is empty if it has finished or was stopped early, and its seconds."""

    run: Run
    error: str
    seconds: float


class Launcher(ABC):
    """Trains runs, as many ``jobs`` at a time."""

    every = 0.2
    """Seconds between two looks at the runs."""
    outlives = False
    """Whether runs continue after a signal has stopped this process."""

    def __init__(self, jobs: int) -> None:
        self.jobs, self.signal = jobs, 0
        """The signal that has stopped it; 0 for none."""
        self.running: dict[Run, float] = {}
        """The runs that are being trained, with the times of their beginnings."""

    def run(self, todo: Sequence[Run], stop_early: StopEarly) -> Iterator[Ended]:
        """Train the runs, and yield each at its end."""
        waiting = list(todo)
        try:
            while (self.running or waiting) and not (self.signal and (self.outlives or not self.running)):
                while waiting and len(self.running) < self.jobs and not self.signal:
                    run = waiting.pop(0)
                    with clear_errors(run.folder):
                        make_folder(run.folder)
                    self.running[run] = time.monotonic()
                    self.begin(run)
                for run, began in list(self.running.items()):
                    if early := stop_early(run):
                        self.end(run)
                    if (error := self.look(run)) is not None:
                        del self.running[run]
                        if run.finished or not self.signal:
                            yield Ended(run, "" if early else error, time.monotonic() - began)
                time.sleep(self.every)
        finally:
            for run in () if self.outlives else tuple(self.running):
                self.end(run)

    def stop(self, number: int, _: FrameType | None) -> None:
        """Handle a signal: start no more runs."""
        self.signal = number

    @abstractmethod
    def begin(self, run: Run) -> None:
        """Start or resume a run."""

    @abstractmethod
    def look(self, run: Run) -> str | None:
        """None while a run is being trained, then its error, or an empty text."""

    @abstractmethod
    def end(self, run: Run) -> None:
        """Stop a run that is being trained."""


class LocalLauncher(Launcher):
    """Runs each run as a process of this machine. The processes share the cores, and a GPU if there is one."""

    def __init__(self, jobs: int) -> None:
        super().__init__(jobs)
        self._processes: dict[Run, subprocess.Popen[bytes]] = {}

    def begin(self, run: Run) -> None:
        with (run.folder / OUTPUT).open("ab") as output:
            # A Ctrl-C comes through `stop`, once.
            process = start(run, max(1, num_cores() // self.jobs), output, process_group=0)
        self._processes[run] = process
        if self.signal:  # it came before `stop` knew this process
            process.send_signal(self.signal)

    def look(self, run: Run) -> str | None:
        code = self._processes[run].poll()
        return None if code is None else conclude(run, self._processes.pop(run).returncode)

    def stop(self, number: int, frame: FrameType | None) -> None:
        """Pass a signal on to the current runs, which save and stop."""
        super().stop(number, frame)
        for process in list(self._processes.values()):
            process.send_signal(number)
        again = "; Ctrl-C again stops them at once" if number == signal.SIGINT else ""
        signals.say(f"{signals.name(number)}: current runs are saved and stop, and no further runs start{again}")

    def end(self, run: Run) -> None:
        if process := self._processes.get(run):
            process.terminate()
            process.wait()


def start(run: Run, threads: int, output: IO[bytes], process_group: int | None = None) -> subprocess.Popen[bytes]:
    """Start the run's process, which ends together with this one."""
    # -P: otherwise Python would import a random.py in the working directory instead of its own.
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "flcog", *run.command, *(["--ckpt_path", "last"] if run.begun else [])],
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        env={"OMP_NUM_THREADS": str(threads), **os.environ, **started_by_us()},
        process_group=process_group,
    )


def conclude(run: Run, code: int) -> str:
    """Mark a run that has finished, by the exit status of its process. Returns its error, or an empty text."""
    if code < 0:  # an error of Python's ends a process with a positive code
        return f"killed by {signal.Signals(-code).name}" + " (often because memory ran out)" * (-code == signal.SIGKILL)
    lines = (run.folder / OUTPUT).read_text(errors="replace").strip().splitlines() or [f"exit status {code}"]
    diverged = bool(code) and NOT_FINITE in lines[-1]  # in round 1, too
    if code and not diverged:
        return lines[-1].removeprefix("flcog: error: ")
    if (saved := run.saved) is None:
        return f"its command ended without a run in {run.folder}"
    if not diverged and (pause := saved.paused_by):
        return f"{pause} ended it after round {len(saved.rows)}; the same command without it continues it"
    run.mark_finished(diverged)
    return ""


@never_failing()
def fill(table: Table, runs: Sequence[Run], stop_early: StopEarly = lambda run: False, *, launcher: Launcher) -> list[Ended]:
    """Train the unfinished runs, seed by seed, and print the result of each and the remaining time. Returns the runs that failed."""
    check(runs)
    todo = sorted((run for run in runs if not run.finished), key=lambda run: run.seed)  # all rows have a seed before one has two
    done = len(runs) - len(todo)
    print(f"{len(runs)} run{'s' * (len(runs) != 1)}, {done} of them finished before", flush=True)
    failed, before, began = [], signals.answer(launcher.stop), time.monotonic()
    try:
        for count, ended in enumerate(launcher.run(todo, stop_early), start=1):
            failed += [ended] if ended.error else []
            told = f"{ended.run.name}: {ended.error or outcome(table, ended.run)} ({seconds(ended.seconds)})"
            left = (time.monotonic() - began) / count * (len(todo) - count)
            print(f"[{done + count}/{len(runs)}] {told}" + f", about {clock(left)} left" * (left > 0), flush=True)
    finally:
        signals.put_back(before)
    finished = sum(run.finished for run in runs)
    if launcher.signal and finished < len(runs):
        stopped = f"stopped by {signals.name(launcher.signal)}, {finished} of {len(runs)} runs finished"
        print(f"\n{stopped}. The same command continues the others\n", flush=True)
        raise KeyboardInterrupt if launcher.signal == signal.SIGINT else SystemExit(signals.EXIT_STATUS)
    return failed


def check(runs: Sequence[Run]) -> None:
    """Refuse finished runs with other settings, and mistakes in the options of a row before any row has trained for a night."""
    from flcog.commands.federated_cli import OptionReader

    for run in runs:
        run.check()
    for run in {run.words: run for run in runs if not run.finished}.values():
        try:
            with shown_errors():
                OptionReader(run.command[1:])
        except SystemExit:
            say(f"(in {joined(run.row, run.column)}; no run was started)")
            raise


def outcome(table: Table, run: Run) -> str:
    """The best and the last score of a run that has ended."""
    history = run.history
    metric = next(view.metric for view in table.views.values() if view.column == run.column) or main_of(history)
    values = [row[metric] for row in history if metric in row] if metric else []
    scores = [f"best {figure(best_of(metric, values))}, last {figure(values[-1])}"] if metric and values else []
    state = ["diverged"] if run.diverged else [] if run.finished else ["stopped early"]
    return ", ".join(state + scores) or f"no {metric or 'evaluation'}"
