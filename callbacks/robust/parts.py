"""Steps that several robust rules share."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from flcog.core.checks import option
from flcog.method import Method, UploadMatrix

Combine = Callable[[UploadMatrix], Tensor]
"""The later changes of the uploads and the aggregator, as a function."""

COLUMNS = 1 << 16
"""Columns that are sorted at once, which bounds the memory beside the uploads."""

COLUMNS_IN_CACHE = 1 << 13
"""Columns whose differences a processor's cache holds until they are summed. It makes distances three to six times as fast."""


@dataclass(frozen=True)
class ToleratesAttackers(Method, protocol=True):
    """A rule, or a step before it, for at most ``f`` attackers among the uploads. Unless it says otherwise, they are fewer than half."""

    f: int = option(1, ">= 0")

    @property
    def least(self) -> int:
        return 2 * self.f + 1


def by_columns(function: Callable[[Tensor], Tensor], values: Tensor) -> Tensor:
    """Apply a function [n, c] -> [c] to all columns of a matrix."""
    return torch.cat([function(part) for part in values.split(COLUMNS, 1)]) if values.shape[1] else values.new_zeros(0)


def distances(values: Tensor) -> Tensor:
    """The distances between all rows, float64 [n, n]. They are computed from differences, because products of matrices would round them."""
    squares = values.new_zeros(len(values), len(values), dtype=torch.float64)
    for part in _parts(values):
        for i in range(len(values) - 1):
            squares[i, i + 1 :] += _squares(part[i + 1 :] - part[i])
    return (squares + squares.T).sqrt()


def distances_to(point: Tensor, values: Tensor) -> Tensor:
    """The distance of each row from a point [d], float64 [n].

    >>> distances_to(torch.zeros(2), torch.tensor([[3.0, 4.0], [0.3, 0.4]]))
    tensor([5.0000, 0.5000], dtype=torch.float64)
    """
    squares = values.new_zeros(len(values), dtype=torch.float64)
    for part, center in zip(_parts(values), _parts(point), strict=True):
        squares += _squares(part - center)
    return squares.sqrt()


def _parts(values: Tensor) -> Sequence[Tensor]:
    """A tensor's columns, divided so that intermediate results stay in the processor's cache."""
    return values.split(COLUMNS_IN_CACHE if values.device.type == "cpu" else 16 * COLUMNS, -1)


def _squares(values: Tensor) -> Tensor:
    return torch.linalg.vector_norm(values, dim=1).double().square()


def weighted_mean(values: Tensor, weights: Tensor) -> Tensor:
    """The weighted mean of each column, and the plain mean where all weights are 0: FedDisco gives clients with skewed labels no weight.

    >>> weighted_mean(torch.tensor([[1.0, 1.0], [3.0, 3.0]]), torch.tensor([[3.0, 0.0], [1.0, 0.0]]))
    tensor([1.5000, 2.0000])
    """
    total = weights.sum(0)
    return torch.where(total > 0, (weights * values).sum(0) / total, values.mean(0)).to(values.dtype)


def counted(weights: Tensor) -> Tensor:
    """The weights of the uploads of a group (the last axis), and ones for a group whose weights are all 0, so that it has a mean.

    >>> counted(torch.tensor([[3.0, 1.0], [0.0, 0.0]]))
    tensor([[3., 1.],
            [1., 1.]])
    """
    return torch.where(weights.sum(-1, keepdim=True) > 0, weights, 1.0)


def clipped(uploads: UploadMatrix, norm: Tensor | float) -> UploadMatrix:
    """The uploads, whose changes of the parameters are shortened to at most this norm.

    >>> clipped(UploadMatrix(torch.tensor([[3.0, 4.0, 7.0], [0.3, 0.4, 7.0]]), torch.full((2,), 0.5), num_params=2), 1.0).values
    tensor([[0.6000, 0.8000, 7.0000],
            [0.3000, 0.4000, 7.0000]])
    """
    values = uploads.values.clone()
    values[:, : uploads.num_params] *= (norm / uploads.norms().unsqueeze(1).clamp(min=1e-30)).clamp(max=1.0)
    return uploads._replace(values=values)
