"""FedSAM: sharpness-aware local gradients, which lead clients to flat minima."""

from dataclasses import dataclass

import torch

from flcog.core.checks import option
from flcog.core.types import Batch, Params
from flcog.method import Context, Gradient, GradientFunction, Method


def ascent(gradient: Params, params: Params, rho: float, adaptive: bool, eta: float) -> Params:
    """The step of length ``rho`` to the largest increase of the loss; the adaptive step scales length by the parameters' size.

    >>> ascent({"w": torch.tensor([3.0, 4.0])}, {}, rho=1.0, adaptive=False, eta=0.0)
    {'w': tensor([0.6000, 0.8000])}
    """
    scale = {name: params[name].abs() + eta if adaptive else 1.0 for name in gradient}
    scaled = {name: scale[name] * value for name, value in gradient.items()}
    norm = torch.stack([value.square().sum() for value in scaled.values()]).sum().sqrt()
    # A zero gradient has no direction, so there is no step.
    return {name: scale[name] * value * (rho / norm.clamp(min=1e-12)) for name, value in scaled.items()}


@dataclass(frozen=True)
class FedSAM(Method):
    """Takes every local gradient at the worst point nearby, so that the clients' models, and their mean, end in flat minima.

    With g the gradient of the local loss F at y, and its norm taken over all parameters together::

        g <- grad F(y + rho g / ||g||)
        g <- grad F(y + rho T^2 g / ||T g||),  T = |y| + eta        (adaptive)

    The step starts at y. The ascent ignores weight decay, which belongs to the local optimiser. BatchNorm's statistics come from
    the pass at y. A step costs two passes.

    Qu et al., Generalized Federated Learning via Sharpness Aware Minimization, ICML 2022, https://arxiv.org/abs/2206.02618;
    Caldarola et al., Improving Generalization in Federated Learning by Seeking Flat Minima, ECCV 2022,
    https://arxiv.org/abs/2203.11834, where the adaptive form is FedASAM.

    Args:
        rho: radius of the neighbourhood, >= 0; 0 is FedAvg. Caldarola et al. use 0.1 on CIFAR-10, and 0.7 for the adaptive form.
        adaptive: whether to stretch the neighbourhood along each parameter by its size.
        eta: added to that size, >= 0.
    """

    rho: float = option(0.05, ">= 0")
    adaptive: bool = False
    eta: float = option(0.2, ">= 0")

    def wrap_gradient(self, gradient: GradientFunction, ctx: Context) -> GradientFunction:
        def sharpness_aware(params: Params, batch: Batch) -> Gradient:
            here = gradient(params, batch)
            step = ascent(here.values, params, self.rho, self.adaptive, self.eta)
            at_worst = gradient({name: value + step[name] for name, value in params.items()}, batch)
            return here._replace(values=at_worst.values)

        return sharpness_aware
