"""Encoding and decoding of a vector, and the random numbers that codecs draw in a float64 run with seed 0, for the references."""

from functools import partial
from typing import Any

import numpy as np
import torch

from flcog.callbacks.codecs.codec import Codec, Noise
from flcog.callbacks.parts.noise import draw_key, words
from flcog.core.precision import default_dtype
from flcog.core.randomness import make_rng
from flcog.wire.envelope import Field


def decoded(codec: Codec, v: torch.Tensor, key: torch.Tensor | int = 0) -> torch.Tensor:
    """The vector that the receiver sees."""
    return codec.decode(codec.encode(v, Noise(torch.as_tensor(key), 0)), Field((len(v),), v.dtype))


def noise_of(method: str, round: int, client: int, place: int) -> Noise:
    return Noise(draw_key(make_rng(0, round, client, "draw", method)), place)


def uniform(method: str, depth: int, round: int, client: int, place: int, size: int) -> np.ndarray:
    """Uniform numbers for one tensor."""
    with default_dtype(torch.float64):
        return noise_of(method, round, client, place)._replace(depth=depth).uniform((size,)).numpy()


def uniforms_of(method: str, depth: int = 0) -> partial[np.ndarray]:
    return partial(uniform, method, depth)


def positions(fraction: float, round: int, client: int, place: int, size: int) -> np.ndarray:
    """RandomK's positions, where hashes of the sent seed are largest."""
    hashes = words(noise_of("RandomK", round, client, place).seed(), 0, (size,)).numpy()
    return np.sort(np.argsort(-hashes)[: max(1, round_half_even(fraction * size))])


def round_half_even(value: float) -> int:
    return int(np.rint(value))


def signs_and_uniforms(round: int, client: int, place: int, size: int) -> tuple[Any, Any]:
    """RotatedQuantize's random signs and uniform numbers, for the size rounded up to a power of two."""
    width = 1 << (size - 1).bit_length()
    hashes = words(noise_of("RotatedQuantize", round, client, place).seed(), 0, (width,)).numpy()
    return np.where(hashes < 0, -1.0, 1.0), uniform("RotatedQuantize", 0, round, client, place, width)
