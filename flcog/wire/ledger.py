"""Bytes sent up (clients to server) and down, by sender: the model, or a method's messages; and the part of each client in the rounds."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flcog.core.types import Params

ACCOUNT = ("times_selected", "steps", "up_bytes", "down_bytes", "seconds", "loss")
"""The columns of a client's account: its part in all rounds, and its mean loss in the last of them."""


@dataclass
class Ledger:
    """Bytes sent so far in a run, up (clients to server) and down, under the name ``model`` or a method's name.

    ``accounts`` has the columns of ``ACCOUNT`` and a row for each client that a round has met, whose place ``rows`` names; it grows ahead
    of them. Exchanges of data before round 1 are no part of it.
    """

    up: dict[str, int] = field(default_factory=dict)
    down: dict[str, int] = field(default_factory=dict)
    accounts: np.ndarray = field(default_factory=lambda: _fresh(0), compare=False)
    rows: dict[int, int] = field(default_factory=dict, compare=False)

    def book(self, clients: Sequence[int], **more: Sequence[float] | float) -> None:
        """Add to the accounts of these clients, by column. A loss replaces the one before it, unless it is NaN."""
        rows = np.array([self.rows.setdefault(client, len(self.rows)) for client in clients], dtype=np.int64)
        if len(self.rows) > len(self.accounts):
            self.accounts = np.concatenate([self.accounts, _fresh(len(self.rows))])
        for name, values in more.items():
            column, new = self.accounts[:, ACCOUNT.index(name)], np.broadcast_to(np.asarray(values, dtype=np.float64), rows.shape)
            if name == "loss":
                column[rows] = np.where(np.isnan(new), column[rows], new)
            else:
                np.add.at(column, rows, new)

    def columns(self, num_clients: int) -> dict[str, np.ndarray]:
        """The accounts of all clients by column: numbers and bytes are integers."""
        whole = _fresh(num_clients)
        whole[[*self.rows]] = self.accounts[: len(self.rows)]
        return {
            name: column if name in ("seconds", "loss") else column.astype(np.int64)
            for name, column in zip(ACCOUNT, whole.T, strict=True)
        }

    def add(self, name: str, up: int = 0, down: int = 0) -> None:
        self.up[name] = self.up.get(name, 0) + up
        self.down[name] = self.down.get(name, 0) + down

    @property
    def total_up(self) -> int:
        return sum(self.up.values())

    @property
    def total_down(self) -> int:
        return sum(self.down.values())

    @property
    def totals(self) -> tuple[int, int]:
        """The bytes up and down."""
        return self.total_up, self.total_down

    def figures(self, before: tuple[int, int]) -> dict[str, float]:
        """This round's columns, given the totals before the round: bytes of the round, then of the run so far."""
        return {
            "comm/up_bytes": self.total_up - before[0],
            "comm/down_bytes": self.total_down - before[1],
            "comm/up_bytes_total": self.total_up,
            "comm/down_bytes_total": self.total_down,
            "comm/total_bytes": self.total_up + self.total_down,
        }

    def state_dict(self) -> dict[str, Any]:
        """The totals, and the accounts of the clients that the rounds have met."""
        clients, accounts = torch.tensor([*self.rows], dtype=torch.int64), torch.tensor(self.accounts[: len(self.rows)])
        return {"up": dict(self.up), "down": dict(self.down), "clients": clients, "accounts": accounts}

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> "Ledger":
        ledger = cls(dict(state["up"]), dict(state["down"]))
        ledger.book(state["clients"].tolist(), **dict(zip(ACCOUNT, state["accounts"].T.tolist(), strict=True)))
        return ledger


def _fresh(number: int) -> np.ndarray:
    accounts = np.zeros((number, len(ACCOUNT)))
    accounts[:, ACCOUNT.index("loss")] = np.nan
    return accounts


def model_bytes(params: Params, buffers: Params) -> int:
    """The model itself, as broadcast to one client."""
    return sum(tensor.numel() * tensor.element_size() for part in (params, buffers) for tensor in part.values())


def masked_bytes(masks: Mapping[str, Tensor], sizes: Mapping[str, int]) -> int:
    """The bytes that masks save, given the bytes of whole parameters."""
    return sum(sizes[name] * int((~mask).sum()) // mask.numel() for name, mask in masks.items() if name in sizes)
