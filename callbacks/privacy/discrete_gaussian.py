"""Discrete Gaussian noise, sampled exactly: uniform random words, comparisons of whole numbers, and no rounding.

Canonne, Kamath and Steinke, The Discrete Gaussian for Differential Privacy, NeurIPS 2020, https://arxiv.org/abs/2004.00010. The standard
deviation is a power of two, so that all probabilities of their algorithm are exp(-a / 2^b) with whole numbers a and b.
"""

import hashlib
from itertools import count

import numpy as np

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
