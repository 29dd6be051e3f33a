"""Bytes sent up (clients to server) and down, by sender: the model, or a method's messages; and the part of each client in the rounds."""

import math
import operator
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from flcog.core.types import Params


class Account(NamedTuple):
    """The part of one client in all rounds, and its mean loss in the last of them."""

    times_selected: int = 0
    steps: int = 0
    up_bytes: int = 0
    down_bytes: int = 0
    seconds: float = 0.0
    loss: float = math.nan


@dataclass
class Ledger:
    """Bytes sent so far in a run, up (clients to server) and down, under the name ``model`` or a method's name.

    ``clients`` are the accounts of the clients that the rounds have met. Exchanges of data before round 1 are no part of them.
    """

    up: dict[str, int] = field(default_factory=dict)
    down: dict[str, int] = field(default_factory=dict)
    clients: dict[int, Account] = field(default_factory=dict, compare=False)

    def book(self, client: int, more: Account) -> None:
        """Add to a client's account."""
        known = self.clients.get(client, Account())
        loss = known.loss if math.isnan(more.loss) else more.loss
        self.clients[client] = Account(*map(operator.add, known, more))._replace(loss=loss)

    def add(self, name: str, up: int = 0, down: int = 0) -> None:
        self.up[name] = self.up.get(name, 0) + up
        self.down[name] = self.down.get(name, 0) + down

    @property
    def total_up(self) -> int:
        return sum(self.up.values())

    @property
    def total_down(self) -> int:
        return sum(self.down.values())

    def figures(self, before: "Ledger") -> dict[str, float]:
        """This round's columns, given the ledger as it was before the round: bytes of the round, then of the run so far."""
        return {
            "comm/up_bytes": self.total_up - before.total_up,
            "comm/down_bytes": self.total_down - before.total_down,
            "comm/up_bytes_total": self.total_up,
            "comm/down_bytes_total": self.total_down,
            "comm/total_bytes": self.total_up + self.total_down,
        }

    def copy(self) -> "Ledger":
        return Ledger(dict(self.up), dict(self.down), dict(self.clients))

    def state_dict(self) -> dict[str, Any]:
        accounts = torch.tensor([*self.clients.values()], dtype=torch.float64)
        return {"up": dict(self.up), "down": dict(self.down), "clients": torch.tensor([*self.clients]), "accounts": accounts}

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> "Ledger":
        rows = zip(state["clients"].tolist(), state["accounts"].tolist(), strict=True)
        accounts = {client: Account(*map(int, row[:4]), *row[4:]) for client, row in rows}
        return cls(dict(state["up"]), dict(state["down"]), accounts)


def model_bytes(params: Params, buffers: Params) -> int:
    """The model itself, as broadcast to one client."""
    return sum(tensor.numel() * tensor.element_size() for part in (params, buffers) for tensor in part.values())


def masked_bytes(masks: Mapping[str, Tensor], sizes: Mapping[str, int]) -> int:
    """The bytes that masks save, given the bytes of whole parameters."""
    return sum(sizes[name] * int((~mask).sum()) // mask.numel() for name, mask in masks.items() if name in sizes)
