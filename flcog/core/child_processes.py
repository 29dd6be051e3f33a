"""Child processes that end together with their parent, and those of a run, which start early.

The other processes of a run start while the first still imports torch, so that all of them import at the same time: a run with
``--trainer.devices 2`` starts four seconds sooner. Such a process imports the command line and waits for its environment and
arguments, or for the end of the first process.
"""

import json
import os
import pkgutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

PARENT = "FLCOG_STARTED_BY"
"""The environment variable with the number of the parent process."""

GRACE = 30.0
"""The seconds that a process has for saving before it is killed, as with schedulers."""

STARTED_BY_OTHERS = (
    "LOCAL_RANK",
    "SLURM_NTASKS",
    "TORCHELASTIC_RUN_ID",
    "OMPI_COMM_WORLD_SIZE",
    "PMI_SIZE",
    "JSM_NAMESPACE_SIZE",
    "RANK",
)
"""Environment variables of programs that start all processes of a run themselves."""

starter: int | None = None
"""The parent process, if this process should end together with it."""

waiting: list[subprocess.Popen[str]] = []
"""Early processes without a task."""


def started_by_us() -> dict[str, str]:
    """Return environment variables for a child process that should end together with this one."""
    return {PARENT: str(os.getpid())}


@contextmanager
def starting_processes() -> Iterator[None]:
    """Make processes that libraries start meanwhile end together with this one."""
    os.environ.update(started_by_us())
    try:
        yield
    finally:
        del os.environ[PARENT]


def end_with_parent() -> None:
    """Watch the parent process and end with it, if the parent requested this.

    Linux can send a signal when a parent dies, but it also does so when a *thread* of the parent ends, and a process that waits
    in a collective would not handle it. So a thread checks.
    """
    global starter
    parent = os.environ.pop(PARENT, None)
    if parent is not None:
        starter = int(parent)
        threading.Thread(target=_watch, args=(starter,), name="end-with-parent", daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.2)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(GRACE)
    os.kill(os.getpid(), signal.SIGKILL)


def prepare(count: int, imported: str, run: str) -> None:
    """Start ``count`` early processes, at most as many as there are other cores.

    They import a module at once, and later call a function without arguments, given as "module:function".
    """
    if not any(name in os.environ for name in STARTED_BY_OTHERS):
        code = (
            f"import sys; sys.path[:] = {sys.path!r}; from flcog.core import child_processes; child_processes.wait(*sys.argv[1:])"
        )
        for _ in range(min(count, (os.cpu_count() or 1) - 1)):
            waiting.append(subprocess.Popen([sys.executable, "-c", code, imported, run], stdin=subprocess.PIPE, text=True))


def start(command: Sequence[str], env: Mapping[str, str], cwd: str | None = None) -> subprocess.Popen[Any]:
    """Run this program in an early process, or in a new process as ``subprocess.Popen`` does."""
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
