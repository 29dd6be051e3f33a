"""Child processes that end together with their parent."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

PARENT = "FLCOG_STARTED_BY"
"""The environment variable with the number of the parent process."""

GRACE = 30.0
"""The seconds that a process has for saving before it is killed, as with schedulers."""


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
    parent = os.environ.pop(PARENT, None)
    if parent is not None:
        threading.Thread(target=_watch, args=(int(parent),), name="end-with-parent", daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.2)
    time.sleep(2.0)  # a collective that fails because of the parent says so first
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(GRACE)
    os.kill(os.getpid(), signal.SIGKILL)
