"""GradientNoise agrees with a reference that gets the run's own draws."""

from functools import partial

import torch
from contracts.case import Case
from harness import RAGGED
from reference import gradient_noise
from torch import Tensor, nn

from flcog.callbacks import GradientNoise
from flcog.callbacks.parts.noise import draw_key, normal
from flcog.core.precision import default_dtype
from flcog.core.randomness import make_rng


def noise_of(round: int, client: int, step: int, model: nn.Module) -> list[Tensor]:
    """The noise that a float64 run with seed 0 draws."""
    key = draw_key(make_rng(0, round, client, "draw", "GradientNoise"))
    with default_dtype(torch.float64):
        return [normal(key, step, tuple(value.shape), stream) for stream, value in enumerate(model.parameters())]


CASES: dict[str, Case] = {
    "GradientNoise": Case(
        GradientNoise(sigma=2.0, dimension=7),
        partial(gradient_noise.run, noise=noise_of, sigma=2.0, dimension=7),
        neutral=GradientNoise(sigma=0.0),
        random=True,
    ),
    "GradientNoise-all": Case(
        GradientNoise(sigma=1.5),
        partial(gradient_noise.run, noise=noise_of, sigma=1.5, dimension=6 * 8 + 8 + 8 * 3 + 3),
        options=RAGGED,
        random=True,
    ),
}
