"""Quantize: numbers of a few bits, by the random rounding of QSGD or to the nearest level."""

from dataclasses import dataclass

import torch
from torch import Tensor

from flcog.callbacks.codecs.bits import pack_bits, unpack_bits
from flcog.callbacks.codecs.codec import Codec, Noise
from flcog.callbacks.codecs.levels import check_bits, from_levels, in_buckets, num_levels, to_levels, variance
from flcog.core.checks import at_least
from flcog.core.types import Slot
from flcog.wire.envelope import Field


@dataclass(frozen=True)
class Quantize(Codec):
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

    Example:
        >>> Quantize(bits=4).kind
        'encode'
    """

    bits: int = 8
    stochastic: bool = True
    bucket: int | None = 512

    def __post_init__(self) -> None:
        super().__post_init__()
        check_bits(self, "bits")
        at_least(self, 1, "bucket")

    @property
    def is_random(self) -> bool:
        return self.stochastic

    def encode(self, values: Tensor, noise: Noise) -> Slot:
        rows, levels = in_buckets(values, self.bucket), num_levels(self.bits)
        scale = torch.linalg.vector_norm(rows, dim=1) if self.stochastic else rows.abs().amax(1)
        codes = to_levels(rows, scale, levels, noise.uniform(tuple(rows.shape)) if self.stochastic else None)
        sent = scale / (1 + variance(rows, scale, levels)) if self.error_feedback and self.stochastic else scale
        return {"scale": sent, "levels": pack_bits(codes.view(-1)[: values.shape[0]], self.bits)}

    def decode(self, encoded: Slot, field: Field) -> Tensor:
        (size,) = field.shape
        codes = in_buckets(unpack_bits(encoded["levels"], self.bits, size), self.bucket)
        return from_levels(codes, encoded["scale"], num_levels(self.bits)).view(-1)[:size]
