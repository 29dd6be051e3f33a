"""Trains the runs of a table as jobs of a Slurm cluster: submits them, submits interrupted ones again, and collects the results."""

import io
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from contextlib import redirect_stderr, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from flcog.commands.compare.launcher import Launcher, conclude, start
from flcog.commands.compare.runs import OUTPUT, Run
from flcog.core import signals
from flcog.core.extras import require
from flcog.core.writer_lock import BUSY

LOGS, JOB, ENDED = "slurm", "slurm/job", "slurm/ended"
"""The folder, inside a run's folder, for submitit's files; the file with the number of its job; and the note about the job's end."""

RETRIES = 3
"""The number of times in a row that a job is submitted again although it has finished no further round."""

PATIENCE = 15.0
"""The seconds before a job ends that found its run busy, and is submitted again."""


@dataclass(frozen=True)
class Job:
    """Trains a run on a node. It resumes the run if an earlier job has begun it, also after Slurm has requeued this job."""

    run: Run

    def __call__(self) -> None:
        (self.run.folder / ENDED).unlink(missing_ok=True)
        for number in signals.available():
            signal.signal(number, lambda *_: None)  # Slurm sends it to the run's process as well, which saves and stops
        # Otherwise Lightning would take the processes of this run for tasks that srun starts.
        os.environ["SLURM_JOB_NAME"] = "bash"
        if not self.run.finished:
            threads = int(os.environ.get("SLURM_CPUS_ON_NODE") or os.cpu_count() or 1)
            with (self.run.folder / OUTPUT).open("ab") as output:
                code = start(self.run, threads, output).wait()
            error = conclude(self.run, code)
            if busy := BUSY in error:  # a node that was lost may still be ending the processes of an earlier job
                time.sleep(PATIENCE)
            # A signal may have stopped it between two rounds, or before it could answer signals.
            stopped = busy or code == signals.EXIT_STATUS or code < 0
            self.run.note(ENDED, "" if stopped else error)


class SlurmLauncher(Launcher):
    """Runs each run as a job. A job that was stopped is submitted again and resumes its run.

    Jobs continue if this process ends in any way. The next one finds their numbers in the runs' folders. ``sbatch`` reads further options
    from its environment variables.
    """

    every, outlives = 5.0, True

    def __init__(self, jobs: int, partition: str | None = None, limit: str | None = None, gpus: int | None = None) -> None:
        super().__init__(jobs)
        self._limit, self._wishes = limit, {"partition": partition, "gpus_per_node": gpus}
        self._queue: set[str] | None = set()
        self._looked = -self.every
        self._tries: dict[Run, tuple[int, int]] = {}
        """The finished rounds when a run's job was last submitted, and the number of its jobs in a row that ended without a further one."""

    def begin(self, run: Run) -> None:
        self._tries[run] = len(run.history), 0
        if (job := _job(run)) and job in (self._jobs() or ()):
            print(f"{run.name}: job {job} is in the queue", flush=True)
        elif not run.finished:
            self._submit(run, "submitted as")

    def look(self, run: Run) -> str | None:
        jobs, job = self._jobs(), _job(run)
        if jobs is None or job in jobs:
            return None
        if run.finished:
            return ""
        with suppress(OSError):
            if error := (run.folder / ENDED).read_text().strip():
                return error
        rounds, (before, tries) = len(run.history), self._tries[run]
        self._tries[run] = rounds, tries + 1 if rounds <= before and job else 0
        if self._tries[run][1] > RETRIES:
            return f"job {job} was stopped, and so were {RETRIES} before it without a new round: see {run.folder / LOGS}"
        self._submit(run, f"job {job} was stopped after round {rounds}, submitted again as" if job else "submitted as")
        return None

    def stop(self, number: int, frame: FrameType | None) -> None:
        """Stop watching, and leave the jobs in the queue."""
        super().stop(number, frame)
        jobs = " ".join(filter(None, map(_job, self.running)))
        ends = f"; scancel {jobs} ends them" if jobs else ""
        signals.say(f"{signals.name(number)}: submitted jobs continue, and the same command collects their results{ends}")

    def end(self, run: Run) -> None:
        _run("scancel", _job(run))
        run.note(ENDED, "stopped early")

    def _jobs(self) -> set[str] | None:
        """The numbers of the user's jobs in the queue. None if slurmctld does not answer."""
        if time.monotonic() - self._looked >= self.every:
            listed = _run("squeue", "-h", "--me", "-o", "%i")
            if listed.returncode and self._queue is not None:
                print("squeue gets no answer from slurmctld: waiting for it", flush=True)
            self._queue = None if listed.returncode else set(listed.stdout.split())
            self._looked = time.monotonic()
        return self._queue

    def _submit(self, run: Run, how: str) -> None:
        """Submit a run's job, and note its number."""
        for name in (ENDED, JOB):
            (run.folder / name).unlink(missing_ok=True)
        if (job := self._send(run)) is not None:
            run.note(JOB, job)
            self._looked = -self.every
            print(f"{run.name}: {how} job {job}", flush=True)

    def _send(self, run: Run) -> str | None:
        slurm = require("submitit.slurm.slurm", "--launcher slurm", "slurm")
        given: dict[str, Any] = {name: value for name, value in self._wishes.items() if value is not None}
        requeue = {"requeue": True}  # preempted jobs return to the queue also where that is not the default
        name = re.sub(r"[^A-Za-z0-9.]+", "-", f"flcog-{run.folder.parent.name}-{run.folder.name}")
        try:
            # -P: otherwise Python would import a random.py in the working directory instead of its own.
            executor = slurm.SlurmExecutor(run.folder / LOGS, python=f"{shlex.quote(sys.executable)} -P")
            executor.update_parameters(job_name=name, time=self._limit, additional_parameters=requeue, **given)
            with redirect_stderr(io.StringIO()):  # submitit prints the refusal as well
                return str(executor.submit(Job(run)).job_id)
        except RuntimeError as error:  # of sbatch, or because this machine has no Slurm
            if self.signal:  # a terminal's Ctrl-C ends sbatch as well
                return None
            raise ValueError(
                f"sbatch refuses the job of {run.name}: {' '.join(str(error).split())}. Submitted jobs continue, and the same command "
                "collects their results"
            ) from None


def _job(run: Run) -> str:
    """The number of a run's newest job; empty if there is none."""
    path: Path = run.folder / JOB
    return path.read_text().strip() if path.is_file() else ""


def _run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True)
