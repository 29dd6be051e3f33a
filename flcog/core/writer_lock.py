"""The right to write into folders. Two processes that trained the same run would mix their rounds in its files."""

import os
import platform
import time
from pathlib import Path

import yaml
from filelock import FileLock, Timeout

from flcog.core.files import RUN_REMEDY, short, write_yaml

NOTE = ".writer.yaml"
BUSY, ADVICE = "is being trained by", "wait until that has ended or stop it"


class WriterLock:
    """The right to write into a run's directory, which one process has at a time. It may hold several folders.

    The operating system releases the lock when the process dies, in any way, so that a killed run can be resumed at once. A note beside
    the lock tells others which process has it.
    """

    def __init__(self) -> None:
        self._held: list[tuple[Path, FileLock]] = []

    def take(self, run: Path) -> str | None:
        """Take the lock of a run. Returns the reason in one line if that fails."""
        lock, note = FileLock(run / ".lock"), run / NOTE
        try:
            lock.acquire(blocking=False)
            self._held.append((note, lock))
            write_yaml(note, {"process": os.getpid(), "host": platform.node(), "since": time.strftime("%Y-%m-%d %H:%M:%S")})
        except Timeout:
            return f"{short(run)} {BUSY} {_owner(note)}: {ADVICE}, or start a run of your own without ckpt_path"
        except OSError as error:
            return f"cannot write {run}: {error.strerror or error}; {RUN_REMEDY}"
        except ValueError as error:
            return str(error)
        return None

    def release(self) -> None:
        """Release the locks that this object has."""
        while self._held:
            note, lock = self._held.pop()
            note.unlink(missing_ok=True)
            lock.release()


def without_advice(reason: str) -> str | None:
    """Shorten the reason of :meth:`WriterLock.take` to the fact that another process has the lock. None if the reason is another."""
    return reason.partition(f": {ADVICE}")[0] if f" {BUSY} " in reason else None


def _owner(note: Path) -> str:
    try:
        about = yaml.safe_load(note.read_text())
        return f"process {about['process']} on {about['host']} since {about['since']}"
    except (OSError, yaml.YAMLError, KeyError, TypeError):  # it has only just taken the lock
        return "another process"
