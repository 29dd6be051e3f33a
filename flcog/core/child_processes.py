"""Processes that end with the one that started them."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

PARENT = "FLCOG_STARTED_BY"
"""The environment variable that tells a process who started it."""

GRACE = 30.0
"""Seconds to save in, as schedulers give."""


starter: int | None = None
"""The process that started this one, if it asked this one to end with it."""


def started_by_us() -> dict[str, str]:
    """What to add to the environment of a process that should end with this one."""
    return {PARENT: str(os.getpid())}


@contextmanager
def starting_processes() -> Iterator[None]:
    """Processes that others start for us meanwhile, with our environment, end with this one."""
    os.environ.update(started_by_us())
    try:
        yield
    finally:
        del os.environ[PARENT]


def end_with_parent() -> None:
    """Watch the process that started this one, if it asked for that.

    Linux could send a signal at its death, but to this process alone, at the death of a *thread*, and not on other systems; a process
    that waits for a dead one in a collective would not even answer. So a thread looks.
    """
    global starter
    parent = os.environ.pop(PARENT, None)
    if parent is not None:
        starter = int(parent)
        end_with(starter)


def end_with(parent: int) -> None:
    """End this process when its parent, which has this number, is no more."""
    threading.Thread(target=_watch, args=(parent,), name="end-with-parent", daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.2)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(GRACE)
    os.kill(os.getpid(), signal.SIGKILL)
