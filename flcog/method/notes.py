"""Notes: decisions that a run makes on the user's behalf, and facts that the user should know."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True)
class Note:
    """One decision or fact. Its class names the subject; the summary prints the text behind ``topic``.

    Args:
        text: one sentence for the user.
    """

    text: str
    topic: ClassVar[str] = "note"


class WarningNote(Note):
    """The run does less than its settings suggest."""

    topic = "warning"


class ExecutorNote(Note):
    """Which executor runs the clients, how many at a time, and why."""

    topic = "executor"


class MemoryNote(Note):
    """How the available memory limits the number of clients at a time."""

    topic = "memory"


class ModelNote(Note):
    """Which client module was built around a bare network."""

    topic = "client"


class TrackerNote(Note):
    """Where a tracker stores the run."""

    topic = "tracker"


class ChangedSetting(Note):
    """A setting that differs from the run that wrote the checkpoint."""

    topic = "changed"


class Notes:
    """The notes of one run, in the order of their arrival. Observers receive each of them once, through ``on_note``.

    Notes may be added from any thread at any time. They are delivered in the main thread, before ``on_fit_start`` and at the end of
    each round, so that an observer is never called in the middle of a local step.
    """

    def __init__(self) -> None:
        self._notes: list[Note] = []
        self._delivered = 0

    def add(self, *notes: Note) -> None:
        """Add notes."""
        self._notes.extend(notes)

    def undelivered(self) -> Iterator[Note]:
        """The notes that were added since the last call."""
        while self._delivered < len(self._notes):
            self._delivered += 1
            yield self._notes[self._delivered - 1]

    def __iter__(self) -> Iterator[Note]:
        return iter(self._notes)
