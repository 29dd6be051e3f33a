"""Rounding to equally spaced levels, bucket by bucket."""

import torch
import torch.nn.functional as F
from torch import Tensor

from flcog.core.checks import within
from flcog.core.precision import number_dtype


def check_bits(owner: object, *fields: str) -> None:
    """Refuse bits outside 2 to 16."""
    within(owner, "[2, 16]", *fields, hint="one bit is the sign")


def num_levels(bits: int) -> int:
    """The number of levels above 0, s = 2^(bits - 1) - 1, because one bit is the sign.

    >>> [num_levels(bits) for bits in (2, 4, 8, 16)]
    [1, 7, 127, 32767]
    """
    return 2 ** (bits - 1) - 1


def in_buckets(values: Tensor, bucket: int | None) -> Tensor:
    """A vector as rows of ``bucket`` numbers, [buckets, bucket], with zeros at the end, in float32 at least.

    A vector of fewer numbers is one row of its own length.
    """
    size = values.shape[0]
    width = size if bucket is None else min(bucket, size)
    return F.pad(values.to(number_dtype(values.dtype)), (0, -size % width)).view(-1, width)


def to_levels(rows: Tensor, scale: Tensor, levels: int, noise: Tensor | None) -> Tensor:
    """Round each number to a level from 0 (for minus the scale) to 2 ``levels`` (for the scale); int64, in the shape of ``rows``.

    Args:
        rows: [buckets, bucket].
        scale: of each bucket, [buckets], at least its largest magnitude.
        levels: s.
        noise: uniform in [0, 1), for unbiased rounding; None rounds to the nearest level.

    >>> to_levels(torch.tensor([[-1.0, 0.4, 1.0]]), torch.tensor([1.0]), 1, None)
    tensor([[0, 1, 2]])
    """
    place = rows.abs() * (levels / torch.where(scale > 0, scale, 1))[:, None]
    level = (place.round() if noise is None else (place + noise).floor()).clamp(max=levels)
    return torch.where(rows < 0, levels - level, levels + level).long()


def from_levels(codes: Tensor, scale: Tensor, levels: int) -> Tensor:
    """The inverse of :func:`to_levels` up to rounding."""
    return (codes - levels).to(scale.dtype) * (scale / levels)[:, None]


def variance(rows: Tensor, scale: Tensor, levels: int) -> Tensor:
    """The expected squared error of unbiased rounding, relative to the squared norm, of each bucket (the omega of the papers).

    With the norm as the scale it is at most min(d / s^2, sqrt(d) / s) for buckets of d numbers.

    >>> float(variance(torch.tensor([[0.5, 0.5]]), torch.tensor([1.0]), 1))  # two variances of 1/4, over 1/2
    1.0
    """
    step = torch.where(scale > 0, scale, 1) / levels
    rest = (rows.abs() / step[:, None]).frac()
    return (rest * (1 - rest)).sum(1) * step.square() / rows.square().sum(1).clamp(min=torch.finfo(rows.dtype).tiny)
