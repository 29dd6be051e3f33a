"""The random numbers of a run of seed 0 in float64, for the references."""

from functools import partial

import numpy as np
import torch

from flcog.callbacks.parts.noise import draw_key, uniform
from flcog.core.precision import default_dtype
from flcog.core.randomness import make_rng


def uniforms(method: str, round: int, client: int, place: int, size: int) -> np.ndarray:
    """Uniform numbers for one tensor."""
    with default_dtype(torch.float64):
        return uniform(draw_key(make_rng(0, round, client, "draw", method)), place, (size,)).numpy()


def uniforms_of(method: str) -> partial[np.ndarray]:
    return partial(uniforms, method)
