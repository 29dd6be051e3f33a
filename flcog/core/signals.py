"""Signals that end a run between two rounds, so that it is saved whole and can go on.

After Ctrl-C, SIGUSR1, SIGUSR2 and SIGHUP the current round is finished. SIGTERM, which a scheduler sends seconds before it kills a job,
and a second Ctrl-C drop the round: the run then has the state after the previous round. Several processes cannot drop a round together,
so they finish it and agree at its end.
"""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, Literal

EXIT_STATUS = 75
"""The exit status after a signal. In sysexits.h it means "temporary failure, try again", so schedulers start the job again."""

NAMES = ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2")


Handlers = dict[signal.Signals, Any]


class RunStopped(SystemExit):
    """Leaves ``fit`` after a signal, with the state of a whole round; uncaught it ends the process with status 75."""


class RunInterrupted(KeyboardInterrupt):
    """The same after Ctrl-C."""


class RoundDropped(BaseException):
    """Leaves the current round. The loop restores the state before that round."""


class StopSignals:
    """Records signals and decides how the run ends, between :meth:`listen` and :meth:`leave`.

    Args:
        tell: tells the user something; called inside a signal handler.
    """

    def __init__(self, tell: Callable[[str], None]) -> None:
        self.number = 0
        """The signal that came last; 0 for none."""
        self._tell, self._interrupts, self._drop = tell, 0, False
        self._stage: Literal["before", "rounds", "after"] = "before"
        self._shared, self._droppable = False, False
        self._terminals = terminals()
        self._before: Handlers = {}

    def listen(self) -> None:
        """Install handlers, in the main thread only, and only for signals without another handler."""
        self._before = answer(self._handle)

    def leave(self) -> None:
        """Restore the earlier handlers."""
        put_back(self._before)

    def rounds_begin(self, shared: bool) -> None:
        """From here on there is something to save; before, every signal ends the run at once.

        Args:
            shared: whether other processes train the same rounds.
        """
        self._stage, self._shared = "rounds", shared

    def rounds_end(self) -> None:
        """All is saved: Ctrl-C ends the rest at once, the other signals leave it to end by itself."""
        self._stage = "after"

    @contextmanager
    def round_in_hand(self) -> Iterator[Callable[[], None]]:
        """The round that a signal may drop, from the call of the function that this yields; if no other process trains the round."""

        def begin() -> None:
            self._droppable = not self._shared
            if self._droppable and self._drop:
                raise RoundDropped

        try:
            yield begin
        finally:
            self._droppable = False

    def stop(self, number: int, leads: bool) -> BaseException:
        """What to raise between two rounds because of a signal.

        Args:
            number: the signal's.
            leads: whether this process is the first of several. Only that one's exit status is asked for; another's, if not 0,
                makes Fabric kill the first before it has ended.
        """
        if not leads:
            return RunStopped(0)
        return RunInterrupted() if number == signal.SIGINT else RunStopped(EXIT_STATUS)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.number = number
        self._interrupts += number == signal.SIGINT
        self._drop |= number == signal.SIGTERM or self._interrupts > 1
        if number == signal.SIGHUP:
            leave_dead_terminals(self._terminals)
        if self._stage == "rounds":
            self._handle_in_rounds()
        elif number == signal.SIGINT:
            raise KeyboardInterrupt
        elif self._stage == "before":
            self._tell(f"stopped by {name(number)} before the first round: nothing to save")
            raise SystemExit(EXIT_STATUS)

    def _handle_in_rounds(self) -> None:
        if self._droppable and self._drop:
            self._droppable = False  # dropping it takes a while, and must not itself be dropped
            raise RoundDropped
        if self._interrupts > (1 if self._shared else 2):
            raise KeyboardInterrupt
        what = "dropped" if self._drop and not self._shared else "finished"
        again = "; Ctrl-C again stops at once" if self.number == signal.SIGINT else ""
        self._tell(f"{name(self.number)}: the round in hand is {what}, then the run is saved and stops{again}")


def answer(handler: Callable[[int, FrameType | None], None]) -> Handlers:
    """Have the signals that stop a run answered by ``handler``; returns the handlers before, for :func:`put_back`.

    This works in the main thread only. Signals with another handler keep it, as do ignored signals (``nohup`` ignores SIGHUP).
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
    """The signals of this system that stop a run."""
    return [getattr(signal, name) for name in NAMES if hasattr(signal, name)]


def name(number: int) -> str:
    """The signal's name for users: Ctrl-C, or as in SIGTERM."""
    return "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name


def say(text: str) -> None:
    """A line on the error stream, past Python's buffer, which a handler may have interrupted in the middle of a write."""
    with suppress(OSError):
        os.write(2, f"\nflcog: {text}\n".encode())


def terminals() -> list[int]:
    """Which of this process's output streams are shown in a window."""
    return [stream for stream in (1, 2) if _is_terminal(stream)]


def leave_dead_terminals(streams: list[int]) -> None:
    """A window that was closed takes no more output: every further word would be an error, before the run is saved."""
    for stream in streams:
        if not _is_terminal(stream):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream)
            os.close(nowhere)


def _is_terminal(stream: int) -> bool:
    try:
        return os.isatty(stream)
    except OSError:
        return False
