"""Bounded vectors as whole numbers with discrete Gaussian noise, for sums that the server reads without single uploads.

Each client multiplies its vector by 1 / unit, rounds it, and adds its own discrete Gaussian noise with standard deviation 2^14. The unit
is chosen so that the noise of the expected clients has the standard deviation z L, for the noise multiplier z and the largest norm L of a
client's whole numbers. L includes the rounding, which moves a vector of d numbers by at most sqrt(d) / 2.

Kairouz, Liu and Steinke, The Distributed Discrete Gaussian Mechanism for Federated Learning with Secure Aggregation, ICML 2021,
https://arxiv.org/abs/2102.06387.

The noise is sampled exactly: uniform random words, comparisons of whole numbers, and no rounding. Canonne, Kamath and Steinke, The
Discrete Gaussian for Differential Privacy, NeurIPS 2020, https://arxiv.org/abs/2004.00010. The standard deviation is a power of two, so
that all probabilities of their algorithm are exp(-a / 2^b) with whole numbers a and b.
"""

import hashlib
import math
from itertools import count

import numpy as np
import torch
from torch import Tensor

from flcog.method import SealedSum

Integers = np.ndarray
"""Whole numbers, int64 or uint64."""

BLOCK = 1 << 15
"""The number of candidates that are drawn together, which fit into a processor's cache."""


class RandomWords:
    """Uniform whole numbers from SHAKE-256 of a secret."""

    def __init__(self, secret: bytes) -> None:
        self._secret, self._calls = secret, count()

    def below(self, span: int, size: int) -> Integers:
        """Uniform numbers in [0, span), for a span up to 2^63. Words at the end of their range are drawn again, which avoids a bias."""
        words = self._words(size)
        if span & (span - 1) == 0:
            return words & np.uint64(span - 1)
        last = np.uint64(2**64 // span * span - 1)
        while (again := words > last).any():
            words[again] = self._words(int(again.sum()))
        return words % np.uint64(span)

    def _words(self, size: int) -> Integers:
        seed = self._secret + next(self._calls).to_bytes(8, "little")
        return np.frombuffer(bytearray(hashlib.shake_256(seed).digest(8 * size)), dtype="<u8").astype(np.uint64, copy=False)


def discrete_gaussian(size: int, log_std: int, words: RandomWords) -> Integers:
    """Independent whole numbers y with probabilities proportional to exp(-y^2 / (2 4^log_std)), int64 [size].

    Candidates y with probabilities proportional to exp(-|y| / s), for s = 2^log_std, are accepted with probability
    exp(-(|y| - s)^2 / (2 s^2)).

    >>> discrete_gaussian(5, 4, RandomWords(b"secret"))
    array([ 21,  -9, -17,  -9,  -5])
    """
    accepted, missing = [], size
    while missing > 0:
        candidates = _discrete_laplace(min(BLOCK, 2 * missing + 16), log_std, words)
        excess = np.abs(candidates) - (1 << log_std)
        accepted.append(candidates[_happens(excess * excess, 2 * log_std + 1, words)])
        missing -= len(accepted[-1])
    return np.concatenate([np.zeros(0, dtype=np.int64), *accepted])[:size]


def _discrete_laplace(tries: int, log_scale: int, words: RandomWords) -> Integers:
    """Whole numbers y with probabilities proportional to exp(-|y| / 2^log_scale), at most ``tries``."""
    fractions = words.below(1 << log_scale, tries)
    fractions = fractions[_fraction_happens(fractions, log_scale, words)].astype(np.int64)
    wholes, going = np.zeros_like(fractions), np.arange(len(fractions))
    while len(going := going[_fraction_happens(np.ones(len(going), dtype=np.uint64), 0, words)]):
        wholes[going] += 1
    sizes, negative = fractions + (wholes << log_scale), words.below(2, len(wholes)) == 1
    return np.where(negative, -sizes, sizes)[~(negative & (sizes == 0))]


def _happens(exponents: Integers, bits: int, words: RandomWords) -> Integers:
    """Whether events of the probabilities exp(-exponents / 2^bits) happen."""
    exponents = exponents.astype(np.uint64)
    happens = _fraction_happens(exponents & np.uint64((1 << bits) - 1), bits, words)
    wholes, done = exponents >> np.uint64(bits), 0
    while len(going := np.flatnonzero(happens & (wholes > done))):
        happens[going] = _fraction_happens(np.ones(len(going), dtype=np.uint64), 0, words)
        done += 1
    return happens


def _fraction_happens(exponents: Integers, bits: int, words: RandomWords) -> Integers:
    """The same for exponents up to 2^bits. Trials k = 1, 2, ... succeed with probability exponents / (k 2^bits), and the event is that the
    first failure has an odd number."""
    trials, going = np.zeros(len(exponents), dtype=np.int64), np.arange(len(exponents))
    for k in count(1):
        trials[going] += 1
        going = going[words.below(k << bits, len(going)) < exponents[going]]
        if not len(going):
            return trials % 2 == 1
    raise AssertionError


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
