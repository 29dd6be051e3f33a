"""How far the round in hand is."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass
class Progress:
    """The phase of the round in hand, and how many of its clients are done. Clients write it from any thread, and displays read it.

    ``listener`` is called after each change, for a display that cannot look by itself.
    """

    phase: str = ""
    done: float = 0.0
    clients: int = 0
    listener: Callable[[], None] = lambda: None

    def begin(self, phase: str, clients: int = 0) -> None:
        """Begin a phase with this number of clients, and none of them done."""
        self.done, self.clients = 0.0, clients
        self.enter(phase)

    def enter(self, phase: str) -> None:
        """Begin another phase of the same clients, or of the server after them."""
        self.phase = phase
        self.listener()

    def count(self, clients: float) -> None:
        """Count clients that are done."""
        self.done += clients
        self.listener()
