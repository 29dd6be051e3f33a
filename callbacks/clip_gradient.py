"""ClipGradient: the gradient of every local step is shortened to a given norm, if it is longer."""

from dataclasses import dataclass

import torch

from flcog.core.checks import positive
from flcog.core.types import Params
from flcog.method import Context, Method


def clip(gradient: Params, max_norm: float) -> Params:
    """The gradient, shortened to ``max_norm`` if it is longer; its norm is that of all parameters together.

    >>> clip({"w": torch.tensor([3.0, 4.0])}, max_norm=1.0)
    {'w': tensor([0.6000, 0.8000])}
    """
    norm = torch.stack([value.square().sum() for value in gradient.values()]).sum().sqrt()
    # As torch.nn.utils.clip_grad_norm_ has it, so that a plain loop with the same bound is reproduced.
    scale = (max_norm / (norm + 1e-6)).clamp(max=1.0)
    return {name: scale * value for name, value in gradient.items()}


@dataclass(frozen=True)
class ClipGradient(Method):
    """Shortens every client's gradient g of every local step to a norm of at most ``max_norm``, so that no client blows up.

    ::

        g <- g min(1, max_norm / ||g||)

    It acts on what methods before it made of the gradient: list it after SCAFFOLD to bound the corrected one.

    Pascanu et al., On the Difficulty of Training Recurrent Neural Networks, ICML 2013, https://arxiv.org/abs/1211.5063. The codes
    of FedDyn, FedDC and FedExP clip at 10.

    Args:
        max_norm: the bound, > 0.

    Example:
        >>> ClipGradient(max_norm=1.0).max_norm
        1.0
    """

    max_norm: float = 10.0

    def __post_init__(self) -> None:
        super().__post_init__()
        positive(self, "max_norm")

    def correct_gradient(self, gradient: Params, params: Params, ctx: Context) -> Params:
        return clip(gradient, self.max_norm)
