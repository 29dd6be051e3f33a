"""Clipping of clients' gradients: by their norm over all parameters, or value by value."""

from dataclasses import dataclass
from typing import Literal

import torch

from flcog.core import checks
from flcog.core.types import Params
from flcog.method.context import Context
from flcog.method.method import Method


def clip(gradient: Params, max_norm: float) -> Params:
    """The gradient, shortened to ``max_norm`` if it is longer. Its norm is that of all parameters together.

    >>> clip({"w": torch.tensor([3.0, 4.0])}, max_norm=1.0)
    {'w': tensor([0.6000, 0.8000])}
    """
    norm = torch.stack([value.square().sum() for value in gradient.values()]).sum().sqrt()
    # torch.nn.utils.clip_grad_norm_ computes the same, so that a plain loop with the same bound gives the same numbers.
    scale = (max_norm / (norm + 1e-6)).clamp(max=1.0)
    return {name: scale * value for name, value in gradient.items()}


@dataclass(frozen=True)
class GradientClip(Method):
    """The trainer's ``gradient_clip_val``, which acts after the corrections of all other methods.

    Args:
        max_value: the largest norm or value.
        algorithm: ``norm`` or ``value``, as in Lightning.
    """

    max_value: float = 1.0
    algorithm: Literal["norm", "value"] = "norm"

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.within(None, "(0, inf]", gradient_clip_val=self.max_value)

    def correct_gradient(self, gradient: Params, params: Params, ctx: Context) -> Params:
        if self.algorithm == "norm":
            return clip(gradient, self.max_value)
        return {name: value.clamp(-self.max_value, self.max_value) for name, value in gradient.items()}
