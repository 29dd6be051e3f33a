"""GradientNoise: adds Gaussian noise of a chosen strength to local gradients, to study its effect on a method."""

from dataclasses import dataclass

import torch

from flcog.callbacks.parts.noise import draw_key, normal
from flcog.core.checks import at_least
from flcog.core.types import Params, Slot
from flcog.method import ClientView, Context, Method


@dataclass(frozen=True, kw_only=True)
class GradientNoise(Method):
    """Adds Gaussian noise to every gradient of every local step.

    With d the ``dimension`` that divides the noise's variance, each step becomes::

        y <- y - lr (grad f(y) + s),     s ~ N(0, sigma^2 / d I)

    With full batches there is no other stochastic noise; its total is sigma^2 times the number of parameters over d. Eq. A.6 of
    Fedssyn, Li et al. 2024, https://arxiv.org/abs/2306.13263; its softmax regression on MNIST has d = 784, the inputs' dimension.

    Args:
        sigma: strength of the noise, >= 0.
        dimension: d, >= 1; None for the model's number of parameters, so that E ||s||^2 = sigma^2.

    Example:
        >>> GradientNoise(sigma=10.0, dimension=784).sigma
        10.0
    """

    sigma: float = 1.0
    dimension: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, 0, "sigma")
        at_least(self, 1, "dimension")

    def draw(self, rng: torch.Generator, client: ClientView) -> Slot:
        return {"key": draw_key(rng)}

    def correct_gradient(self, gradient: Params, params: Params, ctx: Context) -> Params:
        dimension = self.dimension or sum(value.numel() for value in params.values())
        scale = self.sigma / dimension**0.5
        return {
            name: value + scale * normal(ctx.draws["key"], ctx.step, tuple(value.shape), stream).to(value.dtype)
            for stream, (name, value) in enumerate(gradient.items())
        }
