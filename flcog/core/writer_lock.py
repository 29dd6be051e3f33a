"""The right to write into folders. Two processes that trained the same run would mix their rounds in its files."""

from pathlib import Path

from filelock import FileLock, Timeout

from flcog.core.files import RUN_REMEDY, clear_errors, short

BUSY = "is being trained by"
"""In the error of a run that another process trains."""


class WriterLock:
    """The right to write into a run's directory, which one process has at a time. It may hold several folders.

    The operating system releases the lock when the process dies, in any way, so that a killed run can be resumed at once.
    """

    def __init__(self) -> None:
        self._held: list[FileLock] = []

    def take(self, run: Path) -> None:
        """Take the lock of a run. Refuse a run that another process has."""
        lock = FileLock(run / ".lock")
        with clear_errors(run, RUN_REMEDY):
            try:
                lock.acquire(blocking=False)
            except Timeout:
                raise ValueError(
                    f"{short(run)} {BUSY} another process: wait until that has ended or stop it, or start a run of your own without "
                    "ckpt_path"
                ) from None
            self._held.append(lock)

    def release(self) -> None:
        """Release the locks that this object has."""
        while self._held:
            self._held.pop().release()
