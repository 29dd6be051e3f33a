"""Notes: decisions that a run makes on the user's behalf, and facts that the user should know."""

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Note:
    """One decision or fact, which the summary prints behind its topic.

    Args:
        topic: ``executor``, ``memory``, ``client``, ``tracker``, ``privacy`` or ``attackers``; ``changed`` for a setting that differs
            from the run that wrote the checkpoint; ``warning`` if the run does less than its settings suggest; otherwise ``note``.
        text: one sentence for the user.
    """

    topic: str
    text: str


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
