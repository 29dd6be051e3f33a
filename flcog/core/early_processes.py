"""Starts the other processes of a run while the first still imports torch, so that all of them import at the same time.

A run with ``--trainer.devices 2`` starts four seconds sooner. An early process imports the command line and waits for the environment
and the arguments of its process, or for the end of the first process, with which it ends.
"""

import json
import os
import pkgutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

STARTED_BY_OTHERS = ("LOCAL_RANK", "SLURM_NTASKS", "TORCHELASTIC_RUN_ID", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
"""Environment variables of programs that start all processes of a run themselves."""

waiting: list[subprocess.Popen[str]] = []


def prepare(count: int, imported: str, run: str) -> None:
    """Start ``count`` processes, at most as many as there are other cores.

    They import a module at once, and later call a function without arguments, given as "module:function".
    """
    if not any(name in os.environ for name in STARTED_BY_OTHERS):
        code = (
            f"import sys; sys.path[:] = {sys.path!r}; from flcog.core import early_processes; early_processes.wait(*sys.argv[1:])"
        )
        for _ in range(min(count, (os.cpu_count() or 1) - 1)):
            waiting.append(subprocess.Popen([sys.executable, "-c", code, imported, run], stdin=subprocess.PIPE, text=True))


def start(command: Sequence[str], env: Mapping[str, str], cwd: str | None = None) -> subprocess.Popen[Any]:
    """Run this program in a waiting process, or in a new process as ``subprocess.Popen`` does."""
    if not waiting or cwd is not None:
        return subprocess.Popen(command, env=env, cwd=cwd)
    process = waiting.pop()
    assert process.stdin is not None
    with process.stdin:
        json.dump({"env": dict(env), "argv": sys.argv}, process.stdin)
    return process


def wait(imported: str, run: str) -> None:
    """Run as an early process: see :func:`prepare`."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends it without a traceback
    pkgutil.resolve_name(imported)
    if text := sys.stdin.read():
        task = json.loads(text)
        os.environ.clear()
        os.environ.update(task["env"])
        sys.argv[:] = task["argv"]
        signal.signal(signal.SIGINT, signal.default_int_handler)
        pkgutil.resolve_name(run)()
