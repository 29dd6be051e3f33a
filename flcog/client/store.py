"""The store of clients' states between rounds, which the host of the clients provides, and the residuals of stages among them."""

from collections.abc import Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor

from flcog.core.types import Slot
from flcog.method import Method, Stage


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


def residual_stages(methods: Sequence[Method]) -> list[int]:
    """The positions of the stages that keep residuals."""
    return [i for i, method in enumerate(methods) if isinstance(method, Stage) and method.keeps_residual]


def filled(residuals: Sequence[Mapping[str, Tensor]]) -> list[dict[str, Tensor]]:
    """Give the residuals of several clients the same entries, with zeros for missing entries, so that clients can be stacked.

    Clients without an upload so far have no entries, and the first uploads of a method add entries.

    >>> filled([{}, {"w": torch.tensor([1.0])}])
    [{'w': tensor([0.])}, {'w': tensor([1.])}]
    """
    known = {name: value for residual in residuals for name, value in residual.items()}
    zeros = {name: torch.zeros_like(known[name]) for name in sorted(known)}
    return [{**zeros, **residual} for residual in residuals]
