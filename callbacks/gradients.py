"""ClipGradient and GradientNoise: changes of every local gradient."""

from dataclasses import dataclass

import torch

from flcog.callbacks.parts.noise import draw_key, normal
from flcog.core.checks import option
from flcog.core.types import Params, Slot
from flcog.method import ClientView, Context, Method
from flcog.method.gradient_clip import clip


@dataclass(frozen=True)
class ClipGradient(Method):
    """Shortens every client's gradient g of every local step to a norm of at most ``max_norm``, so that no client diverges.

    ::

        g <- g min(1, max_norm / ||g||)

    It clips the gradient after the changes of methods listed before it: list it after SCAFFOLD to clip the corrected gradient.

    Pascanu et al., On the Difficulty of Training Recurrent Neural Networks, ICML 2013, https://arxiv.org/abs/1211.5063. The codes
    of FedDyn, FedDC and FedExP clip at 10.

    Args:
        max_norm: the bound, > 0.
    """

    max_norm: float = option(10.0, "> 0")

    def correct_gradient(self, gradient: Params, params: Params, ctx: Context) -> Params:
        return clip(gradient, self.max_norm)


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
    """

    sigma: float = option(1.0, ">= 0")
    dimension: int | None = option(None, ">= 1")

    def draw(self, rng: torch.Generator, client: ClientView) -> Slot:
        return {"key": draw_key(rng)}

    def correct_gradient(self, gradient: Params, params: Params, ctx: Context) -> Params:
        dimension = self.dimension or sum(value.numel() for value in params.values())
        scale = self.sigma / dimension**0.5
        return {
            name: value + scale * normal(ctx.draws["key"], ctx.step, tuple(value.shape), stream).to(value.dtype)
            for stream, (name, value) in enumerate(gradient.items())
        }
