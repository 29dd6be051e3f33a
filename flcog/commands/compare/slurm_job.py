"""The part of ``flcog compare --launcher slurm`` that runs on a cluster's node: it trains one run of the table."""

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from flcog.commands.compare.folder import OUT_REMEDY, OUTPUT
from flcog.commands.compare.plan import Cell
from flcog.commands.compare.training import conclude, start
from flcog.core import signals
from flcog.core.files import replacing
from flcog.core.writer_lock import without_advice

LOGS = "slurm"
"""The folder, inside a run's folder, for files of submitit and for the note about the job's end."""

ENDED = "ended"

PATIENCE = 45.0
"""Seconds to wait for the processes of an earlier job, which a node that was lost may still be ending."""


class End(NamedTuple):
    """The end of a job, as its process noted it: the exit status of the run and its error."""

    code: int
    error: str

    @property
    def was_stopped(self) -> bool:
        """Whether a signal has stopped the run: between two rounds, or before it could answer signals (a negative status)."""
        return self.code == signals.EXIT_STATUS or self.code < 0


@dataclass(frozen=True)
class Job:
    """Trains a run of the table. It resumes the run if an earlier job has begun it, also after Slurm has requeued this job.

    Args:
        cell: the run.
    """

    cell: Cell

    def __call__(self) -> None:
        cell, deadline = self.cell, time.monotonic() + PATIENCE
        forget_end(cell.folder)
        for number in signals.available():
            signal.signal(number, _left_to_the_run)
        # Otherwise Lightning would take the processes of this run for tasks that srun starts.
        os.environ["SLURM_JOB_NAME"] = "bash"
        code = 0
        while not cell.finished:
            cell.error = None
            with (cell.folder / OUTPUT).open("ab") as output:
                code = start(cell, _cores(), output).wait()
            conclude(cell, code)
            if not (cell.error and without_advice(cell.error) and time.monotonic() < deadline):
                break
            time.sleep(5)
        with replacing(cell.folder / LOGS / ENDED, "w", OUT_REMEDY) as file:
            file.write(f"{code}\n{cell.error or ''}\n")


def end_of(folder: Path) -> End | None:
    """The end of a cell's last job. None if the job is waiting or running, or was killed."""
    try:
        code, error = (folder / LOGS / ENDED).read_text().split("\n", 1)
        return End(int(code), error.strip())
    except (OSError, ValueError):
        return None


def forget_end(folder: Path) -> None:
    """Delete the note about the end of an earlier job."""
    (folder / LOGS / ENDED).unlink(missing_ok=True)


def _left_to_the_run(*_: object) -> None:
    """Ignore a signal. Slurm sends it to the run's process as well, which saves and stops."""


def _cores() -> int:
    """The number of cores that Slurm has given to the job on this node."""
    return int(os.environ.get("SLURM_CPUS_ON_NODE") or os.cpu_count() or 1)
