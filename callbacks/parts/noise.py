"""Keyed noise for pure hooks: values that depend only on a drawn key, the step and the position, the same in every executor."""

import torch
from torch import Tensor

from flcog.core.precision import number_dtype
from flcog.core.randomness import GOLDEN, mix


def draw_key(rng: torch.Generator) -> Tensor:
    """The randomness of a client's round, in one number."""
    return torch.randint(2**62, (), generator=rng)


def uniform(key: Tensor, step: Tensor | int, shape: tuple[int, ...], stream: int = 0) -> Tensor:
    """Values in [0, 1), independent for every key, step, stream and position; further rows do not change the others.

    They are float32 at least; for a bfloat16 model the caller rounds them.

    The values that ``Method.draw`` returns must not grow with the number of steps or with the model, so it draws only a key.

    >>> uniform(torch.tensor(1), 0, (3,)).equal(uniform(torch.tensor(1), 0, (5,))[:3])
    True
    """
    # A float32 below 1 has 24 bits, so every value is exact and none rounds up to 1. In bfloat16 one in 500 would.
    return ((words(key, step, shape, stream) >> 40) & (2**24 - 1)).to(number_dtype()) * 2.0**-24


def words(key: Tensor, step: Tensor | int, shape: tuple[int, ...], stream: int = 0) -> Tensor:
    """Whole numbers of 64 bits in the same way, int64."""
    position = torch.arange(torch.Size(shape).numel(), device=key.device).view(shape)
    return mix(mix(mix(mix(key) + step) + stream) + position * GOLDEN)


def normal(key: Tensor, step: Tensor | int, shape: tuple[int, ...], stream: int = 0) -> Tensor:
    """Standard normal values in the same way (by Box and Muller's transform)."""
    radius, angle = (uniform(key, step, shape, 2 * stream + half) for half in (0, 1))
    return (-2 * torch.log1p(-radius)).sqrt() * (2 * torch.pi * angle).cos()
