"""The store of clients' states between rounds, which the host of the clients provides."""

from collections.abc import Sequence
from typing import Protocol

from flcog.core.types import Slot


class ClientStore(Protocol):
    """The states of clients between their rounds."""

    owner: dict[int, int]
    """The process that keeps each stateful client. All processes have the same copy of this map."""

    @property
    def clients(self) -> list[int]:
        """The clients with a state, in order."""

    def get(self, client: int) -> dict[str, Slot]:
        """A client's states by method; empty if it has no state yet."""

    def fetch(self, clients: Sequence[int]) -> None:
        """Read these clients' states into memory before they are used."""

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
        """Do nothing, because all states are in memory."""

    def put(self, client: int, states: dict[str, Slot]) -> None:
        self._states[client] = states
