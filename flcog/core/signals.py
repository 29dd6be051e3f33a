"""Handle signals that end a run between two rounds, so that the run is saved completely and can be resumed.

After Ctrl-C, SIGUSR1, SIGUSR2 and SIGHUP a run finishes its round. A second Ctrl-C, and SIGTERM, which a scheduler sends seconds before
it kills, end it at once: it resumes from its last checkpoint.
"""

import os
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Any

EXIT_STATUS = 75
"""The exit status after a signal: "temporary failure, try again" in sysexits.h, which makes schedulers requeue a job."""

NAMES = ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2")

Handlers = dict[signal.Signals, Any]


class RunStopped(SystemExit):
    """Leaves ``fit`` after a signal, with the state of a complete round. Uncaught, it ends the process with status 75."""


class RunInterrupted(KeyboardInterrupt):
    """The same after Ctrl-C."""


class StopSignals:
    """Handles signals between :meth:`listen` and :meth:`leave`.

    ``tell`` prints a message for the user, inside a signal handler.
    """

    def __init__(self, tell: Callable[[str], None]) -> None:
        self.number = 0
        """The last signal, or 0."""
        self.in_rounds = False
        """Whether the run is saved after a signal. Before and after its rounds every signal ends it immediately."""
        self._tell = tell
        self._before: Handlers = {}

    def listen(self) -> None:
        """Install handlers, in the main thread only, for signals that have no other handler and are not ignored."""
        self._before = answer(self._handle)

    def leave(self) -> None:
        """Restore the earlier handlers."""
        put_back(self._before)

    def stop(self, number: int, leads: bool, round: int) -> BaseException:
        """Return the exception that ends the run between two rounds because of a signal.

        Only the first process's exit status counts. A status other than 0 of another makes Fabric kill the first before it has ended.
        """
        if not leads:
            return RunStopped(0)
        return RunInterrupted(f"Ctrl-C ended the run after round {round}") if number == signal.SIGINT else RunStopped(EXIT_STATUS)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        again, self.number = self.number == number == signal.SIGINT, number
        if self.in_rounds and not again and number != signal.SIGTERM:
            more = "; Ctrl-C again stops at once" if number == signal.SIGINT else ""
            self._tell(f"{name(number)}: the round in hand is finished, then the run is saved and stops{more}")
        elif number == signal.SIGINT:
            raise KeyboardInterrupt
        else:
            self._tell(f"stopped by {name(number)}")
            raise SystemExit(EXIT_STATUS)


def answer(handler: Callable[[int, FrameType | None], None]) -> Handlers:
    """Install ``handler`` for the signals that stop a run.

    Returns the earlier handlers for :func:`put_back`. Works only in the main thread, and leaves signals alone that another
    handler handles or that are ignored (``nohup`` ignores SIGHUP).
    """
    if threading.current_thread() is not threading.main_thread():
        return {}
    free = [number for number in available() if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler)]
    return {number: signal.signal(number, handler) for number in free}


def put_back(handlers: Handlers) -> None:
    """The inverse of :func:`answer`."""
    for number, handler in handlers.items():
        signal.signal(number, handler)


def available() -> list[signal.Signals]:
    """Return the signals that stop a run and exist on this system."""
    return [getattr(signal, name) for name in NAMES if hasattr(signal, name)]


def name(number: int) -> str:
    """The signal's name for users, such as Ctrl-C or SIGTERM."""
    return "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name


def say(text: str) -> None:
    """Print a line on the error stream without Python's buffer, because the signal may have interrupted a write to it."""
    with suppress(OSError):
        os.write(2, f"\nflcog: {text}\n".encode())
