"""The gradient of a loss, with one line for a parameter that the user's code has frozen meanwhile."""

from typing import Any

import torch
from torch import Tensor

from flcog.core.types import Params


def gradients_of(loss: Tensor, params: Params, materialize: bool = True) -> tuple[Any, ...]:
    """The gradients of the parameters, in their order.

    With ``materialize``, a parameter that the loss does not use has a gradient of 0 instead of None.
    """
    try:
        return torch.autograd.grad(loss, list(params.values()), allow_unused=True, materialize_grads=materialize)
    except RuntimeError:
        frozen = next((name for name, value in params.items() if not value.requires_grad), None)
        if frozen is None:
            raise
        raise ValueError(
            f"a client's step changes requires_grad of {frozen}, and the server averages the same parameters in all rounds: change it "
            "in the module's constructor, setup or configure_model, or train several runs with init_from"
        ) from None
