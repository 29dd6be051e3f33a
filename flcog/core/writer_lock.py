"""The right to write into folders. Two processes that trained the same run would mix their rounds in its files."""

import os
import platform
import time
from pathlib import Path

import yaml
from filelock import FileLock, Timeout

from flcog.core.files import RUN_REMEDY, clear_errors, short, write_yaml

BUSY = "is being trained by"
"""In the error of a run that another process trains."""


class WriterLock:
    """The right to write into a run's directory, which one process has at a time. It may hold several folders.

    The operating system releases the lock when the process dies, in any way, so that a killed run can be resumed at once. A note beside
    the lock tells others which process has it.
    """

    def __init__(self) -> None:
        self._held: list[tuple[Path, FileLock]] = []

    def take(self, run: Path) -> None:
        """Take the lock of a run, or name the process that has it."""
        lock, note = FileLock(run / ".lock"), run / ".writer.yaml"
        with clear_errors(run, RUN_REMEDY):
            try:
                lock.acquire(blocking=False)
            except Timeout:
                raise ValueError(
                    f"{short(run)} {BUSY} {_owner(note)}: wait until that has ended or stop it, or start a run of your own without "
                    "ckpt_path"
                ) from None
            self._held.append((note, lock))
            write_yaml(note, {"process": os.getpid(), "host": platform.node(), "since": time.strftime("%Y-%m-%d %H:%M:%S")})

    def release(self) -> None:
        """Release the locks that this object has."""
        while self._held:
            note, lock = self._held.pop()
            note.unlink(missing_ok=True)
            lock.release()


def _owner(note: Path) -> str:
    try:
        about = yaml.safe_load(note.read_text())
        return f"process {about['process']} on {about['host']} since {about['since']}"
    except (OSError, yaml.YAMLError, KeyError, TypeError):  # it has only just taken the lock
        return "another process"
