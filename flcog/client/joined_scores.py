"""Puts the answers of several hosts to a question of an evaluation together."""

import functools
import math
import operator
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from flcog.client.messages import Scores

JOINS: Mapping[str, Any] = {"mean": operator.add, "sum": operator.add, "max": np.maximum, "min": np.minimum}
"""How the values of two hosts are put together, by the name of the reduction."""

POOLED = "pooled"
"""The reduction of figures that need all samples, such as a metric's. The figures of two hosts cannot be put together."""


def joined_scores(parts: Mapping[int, Scores], sizes: Mapping[int, int], kind: str) -> Scores:
    """The scores of all clients, and the figures on all held-out samples."""
    together, withheld = dict[str, float](), list[str]()
    for name in dict.fromkeys(name for part in parts.values() for name in part.figures):
        measured = [k for k, part in parts.items() if name in part.figures]  # a host without held-out samples has none
        if len(measured) > 1 and any(parts[k].joins.get(name, ("", 1))[0] == POOLED for k in measured):
            withheld.append(name)
            continue
        together[name] = _over_all_rows([(parts[k], sizes[k]) for k in measured], name)
    if withheld:
        warnings.warn(
            f"{', '.join(withheld)} on the clients' held-out parts: no mean over samples, so the {kind}s' figures do not "
            "tell that of all samples together. It is left out; a validation set of the server's gives it",
            stacklevel=2,
        )
    return Scores(torch.stack([part.clients for part in parts.values()]).nanmean(0), together)


def joined_numbers(parts: Mapping[int, Sequence[float]], home: Mapping[int, int], clients: Sequence[int]) -> list[float]:
    """A number for each of these clients; NaN for clients of a host without an answer. ``home`` is the host of each client."""
    found: dict[int, float] = {}
    for k, numbers in parts.items():
        found.update(zip((client for client in clients if home[client] == k), numbers, strict=True))
    return [found.get(client, math.nan) for client in clients]


def _over_all_rows(hosts: Sequence[tuple[Scores, int]], name: str) -> float:
    """A figure over the held-out samples of the clients of all these hosts, each with its number of samples."""
    joins = [host.joins.get(name, ("mean", 1.0)) for host, _ in hosts]
    values, join = [host.figures[name] for host, _ in hosts], JOINS[joins[0][0]]
    if joins[0][0] != "mean":
        return float(functools.reduce(join, values))
    weights = [rows * per_row for (_, rows), (_, per_row) in zip(hosts, joins, strict=True)]
    total = functools.reduce(join, weights)
    return functools.reduce(join, map(operator.mul, values, weights)) / total if total else math.nan
