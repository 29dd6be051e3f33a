"""Trains one run of a table as a process, on this machine or on a node of a cluster. An interrupted run is resumed from its last round."""

import json
import os
import signal
import subprocess
import sys
from typing import IO

from flcog.commands.compare.folder import OUT_REMEDY, OUTPUT
from flcog.commands.compare.plan import Cell
from flcog.core.child_processes import started_by_us
from flcog.core.files import RUN_REMEDY

NOT_FINITE = "is NaN or infinite"
"""A part of the error of a run whose model has diverged."""


def start(cell: Cell, threads: int, output: IO[bytes], process_group: int | None = None) -> subprocess.Popen[bytes]:
    """Start the run's process, which ends together with this one.

    Args:
        cell: the run.
        threads: the number of threads for computations.
        output: the file for everything that it prints.
        process_group: as for ``subprocess.Popen``.
    """
    # -P: otherwise Python would import a random.py in the working directory instead of its own.
    stop = {"class_path": "flcog.callbacks.StopAfter", "init_args": {"round": cell.stop_after}}
    stopping = [f"--trainer.callbacks+={json.dumps(stop)}"] if cell.stop_after else []
    options = [*(["--ckpt_path", "last"] if cell.begun else []), *stopping]
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "flcog", *cell.arguments, *options],
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        env={"OMP_NUM_THREADS": str(threads), **os.environ, **started_by_us()},
        process_group=process_group,
    )


def conclude(cell: Cell, code: int) -> None:
    """Note the end of the run's process in the cell and its folder.

    Args:
        cell: the run.
        code: the exit status of its process.
    """
    if code == 0:
        if (run := cell.files.own_run) is None:
            cell.error = f"its command ended without a run in {cell.folder}"
        elif run.paused_by == "max_time":
            cell.error = (
                f"max_time ended it after round {len(run.rows)}; the same command with a longer one, or none, continues it"
            )
        elif run.paused_by == "StopAfter" and cell.stop_after is None:
            cell.error = f"StopAfter ended it after round {len(run.rows)}; the same command without StopAfter continues it"
        elif not run.paused_by:
            cell.files.mark_finished(cell.identity)
        return
    if code < 0:  # an error of Python's ends a process with a positive code
        cell.error = f"killed by {signal.Signals(-code).name}" + " (often because memory ran out)" * (-code == signal.SIGKILL)
        return
    lines = (cell.folder / OUTPUT).read_text(errors="replace").strip().splitlines()
    cell.error = lines[-1].removeprefix("flcog: error: ").replace(RUN_REMEDY, OUT_REMEDY) if lines else f"exit status {code}"
    if NOT_FINITE in cell.error:  # in round 1, too
        cell.files.mark_finished(cell.identity, diverged=True)
        cell.error = None
