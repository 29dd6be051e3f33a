"""Keeps a run alive when its output cannot be written: the reader of a pipe has gone, the disk is full, the terminal was closed."""

import logging
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from typing import Any


class LossyStream:
    """A text stream whose writes never fail. Text that cannot be written is dropped. All other attributes are the stream's own."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        encoding = getattr(self._stream, "encoding", None) or "utf-8"
        with self._dropping():
            self._stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
        return len(text)

    def flush(self) -> None:
        with self._dropping():
            self._stream.flush()

    @contextmanager
    def _dropping(self) -> Iterator[None]:
        """Send all later output nowhere. Otherwise Python, which flushes once more as it ends, would exit with status 120."""
        try:
            yield
        except (OSError, ValueError):  # ValueError: the stream was closed
            discard(self._stream)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def never_failing() -> Iterator[None]:
    """Send all output through :class:`LossyStream`: flcog's, the user's code's, rich's, and warnings."""
    output, errors = LossyStream(sys.stdout), LossyStream(sys.stderr)
    with redirect_stdout(output), redirect_stderr(errors):
        try:
            yield
        finally:
            output.flush()
            errors.flush()


@contextmanager
def quiet(name: str, message: str = "") -> Iterator[None]:
    """Hide a library's advice: what its logger reports below errors, and warnings whose text begins with a regular expression."""
    log = logging.getLogger(name)
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message)
            yield
    finally:
        log.setLevel(level)


def say(text: str) -> None:
    """Print a line on the error stream, if it can be written."""
    with suppress(OSError, ValueError):
        print(text, file=sys.stderr, flush=True)


def discard(stream: Any) -> None:
    """Connect an output stream's file descriptor to the null device, together with all text that still waits in its buffer."""
    with suppress(OSError, ValueError, AttributeError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)
