"""Puts the answers of several hosts to a question of an evaluation together."""

import functools
import math
import operator
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from flcog.client.messages import Scores

JOINS: Mapping[str, Any] = {"mean": operator.add, "sum": operator.add, "max": np.maximum, "min": np.minimum}
"""How the values of two hosts are put together, by the name of the reduction."""

POOLED = "pooled"
"""The reduction of figures that need all samples, such as those of a metric, so that those of two hosts cannot be put together."""


class Logged(NamedTuple):
    """A figure of a host.

    Args:
        reduction: a key of ``JOINS``.
        total: the figure; of a mean the sum of the values times their weights.
        weight: of the values.
    """

    reduction: str
    total: float
    weight: float

    def joined(self, other: "Logged") -> "Logged":
        """The figure over the samples of both."""
        return Logged(self.reduction, float(JOINS[self.reduction](self.total, other.total)), self.weight + other.weight)

    @property
    def value(self) -> float:
        """The figure."""
        if self.reduction != "mean":
            return self.total
        return self.total / self.weight if self.weight else math.nan


def joined_scores(parts: Mapping[int, Scores], sizes: Mapping[int, int], kind: str) -> Scores:
    """The scores of all clients, and the figures on all held-out samples.

    Args:
        parts: the scores of each host that has answered.
        sizes: the number of held-out samples of each of these hosts.
        kind: what a host is called in messages.
    """
    together, withheld = dict[str, float](), list[str]()
    for name in dict.fromkeys(name for part in parts.values() for name in part.figures):
        measured = [k for k, part in parts.items() if name in part.figures]  # a host without held-out samples has none
        if len(measured) > 1 and any(parts[k].joins.get(name, ("", 1))[0] == POOLED for k in measured):
            withheld.append(name)
            continue
        together[name] = functools.reduce(Logged.joined, (_over_rows(parts[k], name, sizes[k]) for k in measured)).value
    if withheld:
        warnings.warn(
            f"{', '.join(withheld)} on the clients' held-out parts: no mean over samples, so the {kind}s' figures do not "
            "tell that of all samples together. It is left out; a validation set of the server's gives it",
            stacklevel=2,
        )
    return Scores(torch.stack([part.clients for part in parts.values()]).nanmean(0), together)


def joined_numbers(parts: Mapping[int, Sequence[float]], home: Mapping[int, int], clients: Sequence[int]) -> list[float]:
    """A number for each of these clients; NaN for clients of a host without an answer.

    Args:
        parts: the numbers of each host that has answered, for its own among these clients in their order.
        home: the host of each client.
        clients: the clients.
    """
    found: dict[int, float] = {}
    for k, numbers in parts.items():
        found.update(zip((client for client in clients if home[client] == k), numbers, strict=True))
    return [found.get(client, math.nan) for client in clients]


def _over_rows(host: Scores, name: str, rows: int) -> Logged:
    """A host's figure over the held-out samples of its clients, of which there are ``rows``."""
    reduction, per_row = host.joins.get(name, ("mean", 1.0))
    weight = rows * per_row
    return Logged(reduction, host.figures[name] * weight if reduction == "mean" else host.figures[name], weight)
