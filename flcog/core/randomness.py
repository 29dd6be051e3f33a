"""Randomness as an input: every draw is a pure function of (seed, round, client, purpose, position).

A run has no random stream that is consumed in order. The hash below (splitmix64) maps a key and a position to 64 bits, so the
loop, vmap, any number of processes and a resumed run see the same numbers, and adding a method to a run does not change other
methods' numbers.
Whole cohorts are drawn at once: a generator for each client could cost more than its training.
"""

import os
import zlib
from collections.abc import Sequence
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

_MASK = (1 << 64) - 1
# The constants of splitmix64, as signed 64-bit integers for int64 arrays and tensors.
GOLDEN = 0x9E3779B97F4A7C15 - (1 << 64)
_FACTORS = (0xBF58476D1CE4E5B9 - (1 << 64), 0x94D049BB133111EB - (1 << 64))

Words = TypeVar("Words", int, np.ndarray, Tensor)
"""A Python integer, or an int64 array or tensor."""


def mix(z: Words) -> Words:
    """The finaliser of splitmix64: each bit of the key affects all 64 bits of the result.

    Products of arrays and tensors wrap around, as they should. For a Python integer only the lowest 64 bits of the result count.

    >>> int(mix(torch.tensor(1))) % 2**64 == int(mix(np.array([1]))[0]) % 2**64 == mix(1) % 2**64 == 0x5692161D100B05E5
    True
    """
    z = (z ^ _shift_right(z, 30)) * _FACTORS[0]
    z = (z ^ _shift_right(z, 27)) * _FACTORS[1]
    return z ^ _shift_right(z, 31)


def _shift_right(z: Words, bits: int) -> Words:
    # ``>>`` on signed integers copies the sign bit into the top; the mask clears it.
    return (z >> bits) & ((1 << (64 - bits)) - 1)


def fold(*words: int | str) -> int:
    """Make one 64-bit key from integers and names, for example ``fold(seed, round, client, "order")``."""
    key = 0
    for word in words:
        value = zlib.crc32(word.encode()) if isinstance(word, str) else int(word)
        key = mix(key + GOLDEN + value) & _MASK
    return key


def fold_each(key: int, values: Sequence[int] | np.ndarray) -> np.ndarray:
    """Fold each value into a key, at once for many values: uint64 keys of the same length as ``values``."""
    words = np.asarray(values, dtype=np.int64).astype(np.uint64)
    return hash64(words + np.uint64((key + GOLDEN) & _MASK))


def hash64(z: np.ndarray) -> np.ndarray:
    """:func:`mix` for uint64 arrays of keys."""
    return mix(z.view(np.int64)).view(np.uint64)


def uniform(keys: np.ndarray) -> np.ndarray:
    """Doubles in [0, 1) from 64-bit keys."""
    return (keys >> np.uint64(11)).astype(np.float64) * 2.0**-53


def make_rng(*words: int | str) -> torch.Generator:
    """A torch generator on the CPU seeded by these words, for drawing tensors such as noise images or new parameters."""
    return torch.Generator().manual_seed(fold(*words) & (2**63 - 1))


def secret_normal(shape: tuple[int, ...]) -> Tensor:
    """Standard normal numbers in float64 from the operating system's entropy, which nobody can repeat (Box and Muller's transform)."""
    count = torch.Size(shape).numel()
    words = np.frombuffer(os.urandom(16 * count), dtype=np.uint64).reshape(2, count)
    radius, angle = uniform(words)
    values = np.sqrt(-2 * np.log1p(-radius)) * np.cos(2 * np.pi * angle)
    return torch.from_numpy(values.reshape(shape))


def sample_without_replacement(population: int, count: int, key: int) -> list[int]:
    """``count`` distinct integers below ``population``, sorted, in O(count) for any population (Floyd's algorithm)."""
    if count >= population:
        return list(range(population))
    chosen: set[int] = set()
    for position, top in enumerate(range(population - count, population)):
        candidate = fold(key, position) % (top + 1)
        chosen.add(top if candidate in chosen else candidate)
    return sorted(chosen)


def epoch_orders(
    keys: np.ndarray, num_samples: np.ndarray, num_epochs: np.ndarray, shuffle: bool = True
) -> tuple[np.ndarray, np.ndarray]:
    """Draw shuffled passes over each client's samples, for many clients at once.

    Client k reads ``num_epochs[k]`` independent permutations of ``range(num_samples[k])``, one after another, or this range itself if
    nothing is shuffled. Returns the positions of all clients in one array and the offsets that separate the clients.
    """
    lengths = num_samples * num_epochs
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    counter = np.arange(offsets[-1]) - np.repeat(offsets[:-1], lengths)
    epoch, position = np.divmod(counter, np.repeat(num_samples, lengths))
    if not shuffle:
        return position, offsets
    draws = hash64(np.repeat(keys, lengths) + (counter * GOLDEN).view(np.uint64))
    segment = epoch + np.repeat(np.cumsum(num_epochs) - num_epochs, lengths)
    return position[np.lexsort((draws, segment))], offsets
