"""Bounded vectors as whole numbers with discrete Gaussian noise, for sums that the server reads without single uploads.

Each client multiplies its vector by 1 / unit, rounds it, and adds its own discrete Gaussian noise with standard deviation 2^14. The unit
is chosen so that the noise of the expected clients has the standard deviation z L, for the noise multiplier z and the largest norm L of a
client's whole numbers. L includes the rounding, which moves a vector of d numbers by at most sqrt(d) / 2.

Kairouz, Liu and Steinke, The Distributed Discrete Gaussian Mechanism for Federated Learning with Secure Aggregation, ICML 2021,
https://arxiv.org/abs/2102.06387.
"""

import math

import torch
from torch import Tensor

from flcog.callbacks.privacy.discrete_gaussian import RandomWords, discrete_gaussian
from flcog.method import SealedSum

LOG_STD = 14
"""The binary logarithm of the standard deviation of a client's noise. Rounding is small in comparison, and sums are below 2^31."""

LONGEST = 2**30
"""Squares of longer vectors would not be exact in 64 bits."""


def longest(name: str, noise: float, expected: float, most: int, sealer: SealedSum) -> int:
    """The largest norm L of a client's whole numbers."""
    if noise == 0:
        raise ValueError(
            f"{name} and {sealer.name} cannot be combined with noise_multiplier=0, which guarantees nothing: raise it, or list ClipUpdate"
        )
    length = math.floor(math.sqrt(expected) * 2**LOG_STD / noise)
    room = min(sealer.limit(most) / sealer.step, LONGEST)
    if length + 16 * 2**LOG_STD > room:  # noise of 16 standard deviations has a probability below 10^-56
        raise ValueError(
            f"{name} and {sealer.name} cannot be combined: with noise multiplier {noise:.3g}, clients send numbers up to {length:,}, and "
            f"the sums of {most:,} clients have room for numbers up to {room:,.0f}. Set bits to 64, or raise noise_multiplier"
        )
    return length


def value_of_one(name: str, bound: float, length: int, size: int) -> float:
    """The value of the number 1.

    >>> value_of_one("DPFedAvg", bound=1.0, length=102, size=16)
    0.01
    """
    left = length - math.sqrt(size) / 2
    if left <= 0:
        raise ValueError(
            f"{name}: the noise multiplier leaves norms up to {length:,} for {size:,} whole numbers, and rounding alone can have "
            f"{math.sqrt(size) / 2:.0f}: lower noise_multiplier, or take more clients in a round"
        )
    return bound / left


def noisy_whole_numbers(values: Tensor, bound: float, unit: float, length: int, key: bytes) -> Tensor:
    """A client's vector as whole numbers with noise, int64. A vector with NaN becomes 0."""
    noise = torch.from_numpy(discrete_gaussian(len(values), LOG_STD, RandomWords(key)))
    return rounded(values, bound, unit, length) + noise


def rounded(values: Tensor, bound: float, unit: float, length: int) -> Tensor:
    """The whole numbers without noise."""
    norm = float(values.norm())
    if not math.isfinite(norm):
        return torch.zeros(len(values), dtype=torch.int64)
    scale = min(1.0, bound / norm) / unit if norm else 0.0
    numbers = (scale * values).round().long()
    while int((numbers * numbers).sum()) > length**2:  # the last digits of floating-point norms
        scale *= 1 - 1e-6
        numbers = (scale * values).round().long()
    return numbers
