"""Steps that several robust rules share."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from flcog.core.checks import at_least
from flcog.method import Method

COLUMNS = 1 << 16
"""Columns that are sorted at once, which bounds the memory beside the uploads."""


@dataclass(frozen=True)
class ToleratesAttackers(Method, protocol=True):
    """A rule, or a step before it, for at most ``f`` attackers among the uploads. Unless it says otherwise, they are fewer than half."""

    f: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, 0, "f")

    @property
    def least(self) -> int:
        return 2 * self.f + 1


def by_columns(function: Callable[[Tensor], Tensor], values: Tensor) -> Tensor:
    """Apply a function [n, c] -> [c] to all columns of a matrix."""
    return torch.cat([function(part) for part in values.split(COLUMNS, 1)]) if values.shape[1] else values.new_zeros(0)


def distances(values: Tensor) -> Tensor:
    """The distances between all rows, [n, n]. They are computed from differences, because products of matrices would round them."""
    return torch.cdist(values, values, compute_mode="donot_use_mm_for_euclid_dist")


def clipped(values: Tensor, norm: Tensor | float) -> Tensor:
    """The rows, shortened to at most this norm.

    >>> clipped(torch.tensor([[3.0, 4.0], [0.3, 0.4]]), 1.0)
    tensor([[0.6000, 0.8000],
            [0.3000, 0.4000]])
    """
    return values * (norm / values.norm(dim=1, keepdim=True).clamp(min=1e-30)).clamp(max=1.0)
