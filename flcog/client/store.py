"""The store of clients' states between rounds, which whoever hosts clients provides."""

from collections.abc import Sequence
from typing import Protocol

from flcog.core.types import Slot


class ClientStore(Protocol):
    """The states of clients between their rounds."""

    owner: dict[int, int]
    """The process on which each stateful client lives; the same on every process."""

    @property
    def clients(self) -> list[int]:
        """The clients that have a state, in their order."""

    def get(self, client: int) -> dict[str, Slot]:
        """A client's states by method, empty if it has none yet."""

    def fetch(self, clients: Sequence[int]) -> None:
        """Read these clients' states into memory: they are about to be asked for."""

    def put(self, client: int, states: dict[str, Slot]) -> None:
        """Keep a client's new states."""


class StatesInMemory:
    """Keeps all states in memory."""

    def __init__(self) -> None:
        self.owner: dict[int, int] = {}
        self._states: dict[int, dict[str, Slot]] = {}

    @property
    def clients(self) -> list[int]:
        return sorted(self._states)

    def get(self, client: int) -> dict[str, Slot]:
        return self._states.get(client, {})

    def fetch(self, clients: Sequence[int]) -> None:
        """All are in memory."""

    def put(self, client: int, states: dict[str, Slot]) -> None:
        self._states[client] = states
