"""Handle signals that end a run between two rounds, so that the run is saved completely and can be resumed.

After Ctrl-C, SIGUSR1, SIGUSR2 and SIGHUP a run finishes its round. It drops the round after a second Ctrl-C, SIGTERM, which a
scheduler sends seconds before it kills, and SIGXCPU, the limit on CPU time: the run then has the state that it had after the
round before. Several processes cannot drop a round together, so they finish it and agree at its end.
"""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, Literal

EXIT_STATUS = 75
"""The exit status after a signal: "temporary failure, try again" in sysexits.h, which makes schedulers requeue a job."""

NAMES = ("SIGINT", "SIGTERM", "SIGXCPU", "SIGHUP", "SIGUSR1", "SIGUSR2")

URGENT = ("SIGTERM", "SIGXCPU")
"""These leave only seconds: a scheduler kills, or the limit on CPU time (``ulimit -t``) is reached."""


Handlers = dict[signal.Signals, Any]


class RunStopped(SystemExit):
    """Leaves ``fit`` after a signal, with the state of a complete round. Uncaught, it ends the process with status 75."""


class RunInterrupted(KeyboardInterrupt):
    """The same after Ctrl-C."""


class RoundDropped(BaseException):
    """Leaves the current round. The training loop restores the state before the round."""


class StopSignals:
    """Handles signals between :meth:`listen` and :meth:`leave`.

    ``tell`` prints a message for the user, inside a signal handler.
    """

    def __init__(self, tell: Callable[[str], None]) -> None:
        self.number = 0
        """The last signal, or 0."""
        self._tell, self._interrupts, self._drop = tell, 0, False
        self._stage: Literal["before", "rounds", "after"] = "before"
        self._shared, self._droppable = False, False
        self._before: Handlers = {}

    def listen(self) -> None:
        """Install handlers, in the main thread only, for signals that have no other handler and are not ignored."""
        self._before = answer(self._handle)

    def leave(self) -> None:
        """Restore the earlier handlers."""
        put_back(self._before)

    def rounds_begin(self, shared: bool) -> None:
        """From here on the run is saved after a signal. Before, every signal ends the run immediately."""
        self._stage, self._shared = "rounds", shared

    def rounds_end(self) -> None:
        """Everything is saved. From here on Ctrl-C ends the process at once, and other signals let it finish."""
        self._stage = "after"

    @contextmanager
    def round_in_hand(self) -> Iterator[Callable[[], None]]:
        """A round that a signal can drop after the yielded function was called, unless other processes train the same round."""

        def begin() -> None:
            self._droppable = not self._shared
            if self._droppable and self._drop:
                raise RoundDropped

        try:
            yield begin
        finally:
            self._droppable = False

    def stop(self, number: int, leads: bool, round: int) -> BaseException:
        """Return the exception that ends the run between two rounds because of a signal.

        Only the first process's exit status counts. A status other than 0 of another makes Fabric kill the first before it has ended.
        """
        if not leads:
            return RunStopped(0)
        return RunInterrupted(f"Ctrl-C ended the run after round {round}") if number == signal.SIGINT else RunStopped(EXIT_STATUS)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.number = number
        self._interrupts += number == signal.SIGINT
        self._drop |= signal.Signals(number).name in URGENT or self._interrupts > 1
        if self._stage == "rounds":
            self._handle_in_rounds()
        elif number == signal.SIGINT:
            raise KeyboardInterrupt
        elif self._stage == "before":
            self._tell(f"stopped by {name(number)} before the first round: nothing to save")
            raise SystemExit(EXIT_STATUS)

    def _handle_in_rounds(self) -> None:
        if self._droppable and self._drop:
            self._droppable = False  # dropping takes a while and must not be interrupted
            raise RoundDropped
        if self._interrupts > (1 if self._shared else 2):
            raise KeyboardInterrupt
        what = "dropped" if self._drop and not self._shared else "finished"
        again = "; Ctrl-C again stops at once" if self.number == signal.SIGINT else ""
        self._tell(f"{name(self.number)}: the round in hand is {what}, then the run is saved and stops{again}")


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
