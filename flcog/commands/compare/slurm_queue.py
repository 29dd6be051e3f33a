"""Slurm's queue: submits jobs with submitit and lists the user's jobs with ``squeue``, which needs no accounting (``sacct``)."""

import hashlib
import io
import re
import shlex
import shutil
import subprocess
import sys
from contextlib import redirect_stderr
from dataclasses import dataclass
from typing import Any

from flcog.commands.compare.plan import Cell
from flcog.commands.compare.slurm_job import LOGS, Job, forget_end
from flcog.core.extras import require

UNREACHABLE = re.compile("unable to contact|timed out|connection refused|zero bytes", re.IGNORECASE)
"""Parts of the messages of ``sbatch`` and ``squeue`` while slurmctld restarts."""


@dataclass(frozen=True)
class Queue:
    """The queue, with the resources that every job requests. ``sbatch`` reads further options from its environment variables.

    Args:
        partition: the partition; None for the cluster's default.
        time: the limit of a job, in any form of ``sbatch --time``; None for the partition's default.
        gpus: the number of GPUs of a job; None for none.
    """

    partition: str | None = None
    time: str | None = None
    gpus: int | None = None

    def check(self) -> None:
        """Refuse a machine without submitit or without Slurm's commands."""
        require("submitit", "--launcher slurm", "slurm")
        if missing := [name for name in ("sbatch", "squeue", "srun") if shutil.which(name) is None]:
            raise ValueError(
                f"--launcher slurm found no program {missing[0]} on PATH: give the command on a login node of the cluster, "
                "or train here with --launcher local"
            )
        listed = _run("squeue", "-h", "--me")
        if listed.returncode:
            raise ValueError(
                f"--launcher slurm cannot read the queue: {one_line(listed.stderr)}; check that slurmctld is running"
            )

    def jobs(self) -> dict[str, str] | None:
        """The numbers of the user's waiting and running jobs by name. None if slurmctld does not answer."""
        listed = _run("squeue", "-h", "--me", "-o", "%i %j")
        if listed.returncode:
            return None
        words = [line.split(maxsplit=1) for line in listed.stdout.splitlines() if " " in line]
        return {name.strip(): number for number, name in words}

    def submit(self, cell: Cell) -> str | None:
        """Submit a cell's job and return its number. None if slurmctld does not answer."""
        from submitit.core.utils import FailedJobError
        from submitit.slurm.slurm import SlurmExecutor

        # -P: otherwise Python would import a random.py in the working directory instead of its own.
        executor = SlurmExecutor(cell.folder / LOGS, python=f"{shlex.quote(sys.executable)} -P")
        wishes: dict[str, Any] = {"partition": self.partition, "gpus_per_node": self.gpus}
        given = {name: value for name, value in wishes.items() if value is not None}
        requeue = {"requeue": True}  # preempted jobs return to the queue also where that is not the default
        executor.update_parameters(job_name=name_of(cell), time=self.time, additional_parameters=requeue, **given)
        forget_end(cell.folder)
        try:
            with redirect_stderr(io.StringIO()):  # submitit prints the refusal as well
                return executor.submit(Job(cell)).job_id
        except FailedJobError as error:
            if UNREACHABLE.search(str(error)):
                return None
            raise ValueError(
                f"sbatch refuses the job of {cell.name}: {one_line(str(error))}. Submitted jobs continue, and the same command "
                "collects their results"
            ) from None


def name_of(cell: Cell) -> str:
    """The name of a cell's jobs. A comparison that was killed and started again finds them by it."""
    return f"{name_in_folder(cell)}{cell.identity[:8]}"


def name_in_folder(cell: Cell) -> str:
    """The beginning of the names of all jobs in a cell's folder, also of those with other settings."""
    digest = hashlib.sha256(str(cell.folder.resolve()).encode()).hexdigest()[:12]
    label = re.sub(r"[^A-Za-z0-9.]+", "-", f"{cell.folder.parent.name}-{cell.folder.name}")
    return f"flcog-{label}-{digest}-"


def one_line(text: str) -> str:
    """The messages of a Slurm command, without its name."""
    lines = (re.sub(r"^\w+: (error: )?", "", line).strip() for line in text.splitlines())
    return "; ".join(dict.fromkeys(filter(None, lines))) or "no message"


def _run(*command: str) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=120)
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 1, "", "no answer within two minutes")
