"""RotatedQuantize: a random rotation makes all numbers of a bucket similarly large before they are rounded."""

from dataclasses import dataclass

import torch
from torch import Tensor

from flcog.callbacks.codecs.bits import pack_bits, unpack_bits
from flcog.callbacks.codecs.codec import Codec, Noise
from flcog.callbacks.codecs.levels import check_bits, from_levels, in_buckets, num_levels, to_levels, variance
from flcog.callbacks.parts.noise import words
from flcog.core.types import Slot
from flcog.wire.envelope import Field


@dataclass(frozen=True)
class RotatedQuantize(Codec):
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

    Example:
        >>> RotatedQuantize(bits=4).kind
        'encode'
    """

    bits: int = 8
    stochastic: bool = True
    bucket: int = 512

    def __post_init__(self) -> None:
        super().__post_init__()
        check_bits(self, "bits")
        if self.bucket < 2 or self.bucket.bit_count() > 1:
            raise ValueError(f"{self.name}: bucket must be a power of two of at least 2; got {self.bucket}")

    @property
    def is_random(self) -> bool:
        return True

    def encode(self, values: Tensor, noise: Noise) -> Slot:
        seed, levels = noise.seed(), num_levels(self.bits)
        rows = self._rows(values)
        rows = rotated(rows * self._signs(seed, rows))
        scale = rows.abs().amax(1)
        codes = to_levels(rows, scale, levels, noise.uniform(tuple(rows.shape)) if self.stochastic else None)
        sent = scale / (1 + variance(rows, scale, levels)) if self.error_feedback and self.stochastic else scale
        return {"scale": sent, "levels": pack_bits(codes.view(-1), self.bits), "seed": seed}

    def decode(self, encoded: Slot, field: Field) -> Tensor:
        rows, width = encoded["scale"].shape[0], self._width(field.shape[0])
        codes = unpack_bits(encoded["levels"], self.bits, rows * width).view(rows, width)
        values = rotated(from_levels(codes, encoded["scale"], num_levels(self.bits)))
        return (values * self._signs(encoded["seed"], values)).view(-1)[: field.shape[0]]

    def _width(self, size: int) -> int:
        return min(self.bucket, 1 << (size - 1).bit_length())

    def _rows(self, values: Tensor) -> Tensor:
        size = values.shape[0]
        return in_buckets(torch.nn.functional.pad(values, (0, -size % self._width(size))), self._width(size))

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
