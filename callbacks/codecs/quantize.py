"""Quantize and RotatedQuantize: numbers of a few bits, rounded at random as in QSGD or to the nearest level."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from flcog.callbacks.codecs.bits import pack_bits, unpack_bits
from flcog.callbacks.codecs.codec import Codec, Noise
from flcog.callbacks.parts.noise import words
from flcog.core.checks import option
from flcog.core.precision import number_dtype
from flcog.core.types import Slot
from flcog.wire.envelope import Field


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
    """Round each number of the rows to a level from 0 (for minus the scale) to 2 ``levels`` (for the scale); int64.

    The scale of a bucket is at least its largest magnitude. The noise is uniform in [0, 1), and None rounds to the nearest level.

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


@dataclass(frozen=True)
class _Rounding(Codec):
    """Rounds the numbers of each bucket to levels between minus its scale and the scale."""

    bits: int = option(8, "[2, 16]")
    stochastic: bool = True

    def _rounded(self, rows: Tensor, scale: Tensor, count: int, noise: Noise) -> Slot:
        """The scales and the first ``count`` levels of the rows. With error feedback, random rounding has to make the error smaller."""
        levels, at_random = num_levels(self.bits), noise.uniform(tuple(rows.shape)) if self.stochastic else None
        codes = to_levels(rows, scale, levels, at_random)
        sent = scale / (1 + variance(rows, scale, levels)) if self.error_feedback and self.stochastic else scale
        return {"scale": sent, "levels": pack_bits(codes.view(-1)[:count], self.bits)}


@dataclass(frozen=True)
class Quantize(_Rounding):
    """Rounds numbers to 2 s + 1 levels, with s = 2^(bits - 1) - 1, and sends one scale for each bucket of numbers (QSGD).

    A number v_i of a bucket v becomes the level below or above it, at random, so that its expectation is v_i::

        v_i -> ||v||_2 sign(v_i) xi_i / s,     xi_i = floor(s |v_i| / ||v||_2 + u_i),     u_i ~ U[0, 1)

    The expected squared error is at most min(d / s^2, sqrt(d) / s) ||v||^2 for a bucket of d numbers, so that few bits need small buckets.
    If ``stochastic`` is false, each number becomes its nearest level, and the scale is the largest magnitude of the bucket: the error is
    smaller, but does not average out over clients and rounds. With ``error_feedback``, random rounding is divided by 1 + omega, where
    omega is its expected squared error over ||v||^2, so that the residual stays bounded. Whole numbers, and tensors of fewer than 16
    numbers, are sent unchanged.

    Alistarh et al., QSGD: Communication-Efficient SGD via Gradient Quantization and Encoding, NeurIPS 2017,
    https://arxiv.org/abs/1610.02132.

    Args:
        bits: of each number with its sign, 2 to 16.
        stochastic: whether to round at random, without bias.
        bucket: the numbers that share a scale, >= 1; None for whole tensors.
    """

    bucket: int | None = option(512, ">= 1")

    def encode(self, values: Tensor, noise: Noise) -> Slot:
        rows = in_buckets(values, self.bucket)
        scale = torch.linalg.vector_norm(rows, dim=1) if self.stochastic else rows.abs().amax(1)
        return self._rounded(rows, scale, values.shape[0], noise)

    def decode(self, encoded: Slot, field: Field) -> Tensor:
        (size,) = field.shape
        codes = in_buckets(unpack_bits(encoded["levels"], self.bits, size), self.bucket)
        return from_levels(codes, encoded["scale"], num_levels(self.bits)).view(-1)[:size]


@dataclass(frozen=True)
class RotatedQuantize(_Rounding):
    """Rotates each bucket of numbers at random, and then rounds the numbers to 2 s + 1 levels, with s = 2^(bits - 1) - 1.

    H is the Hadamard matrix of the bucket's d numbers, and D a diagonal of random signs, which the receiver draws from the sent seed::

        r = H D v / sqrt(d),     r_i -> max |r| sign(r_i) floor(s |r_i| / max |r| + u_i) / s,     v <- D H r / sqrt(d)

    The rotation keeps the norm and makes the largest number about sqrt(2 log(d) / d) of it, so that an outlier costs no precision: the
    expected squared error is about log(d) / s^2 ||v||^2, against sqrt(d) / s ||v||^2 of ``Quantize`` with few bits. Rounding is
    at random, without bias, or to the nearest level.

    Suresh et al., Distributed Mean Estimation with Limited Communication, ICML 2017, https://arxiv.org/abs/1611.00429.

    Args:
        bits: of each number with its sign, 2 to 16.
        stochastic: whether to round at random, without bias.
        bucket: d, a power of two; shorter tensors are filled up with zeros to the next power.
    """

    bucket: int = 512

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.bucket < 2 or self.bucket.bit_count() > 1:
            raise ValueError(f"{self.name}: bucket must be a power of two of at least 2; got {self.bucket}")

    def encode(self, values: Tensor, noise: Noise) -> Slot:
        seed, width = noise.seed(), self._width(values.shape[0])
        rows = in_buckets(F.pad(values, (0, -values.shape[0] % width)), width)
        rows = rotated(rows * self._signs(seed, rows))
        return self._rounded(rows, rows.abs().amax(1), rows.numel(), noise) | {"seed": seed}

    def decode(self, encoded: Slot, field: Field) -> Tensor:
        rows, width = encoded["scale"].shape[0], self._width(field.shape[0])
        codes = unpack_bits(encoded["levels"], self.bits, rows * width).view(rows, width)
        values = rotated(from_levels(codes, encoded["scale"], num_levels(self.bits)))
        return (values * self._signs(encoded["seed"], values)).view(-1)[: field.shape[0]]

    def _width(self, size: int) -> int:
        return min(self.bucket, 1 << (size - 1).bit_length())

    def _signs(self, seed: Tensor, rows: Tensor) -> Tensor:
        return 1 - 2 * (words(seed, 0, tuple(rows.shape)) >> 63 & 1).to(rows.dtype)


def rotated(rows: Tensor) -> Tensor:
    """Each row [d] times the Hadamard matrix, over sqrt(d): its own inverse.

    >>> rotated(torch.tensor([[1.0, 0.0, 0.0, 0.0]]))
    tensor([[0.5000, 0.5000, 0.5000, 0.5000]])
    """
    width, half = rows.shape[1], 1
    while half < width:
        pairs = rows.view(-1, width // (2 * half), 2, half)
        rows = torch.stack([pairs[:, :, 0] + pairs[:, :, 1], pairs[:, :, 0] - pairs[:, :, 1]], 2).view(-1, width)
        half *= 2
    return rows / width**0.5
