"""FedProx: keeps clients near the model that they received."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import mse_loss

from flcog.core.checks import option
from flcog.core.types import Batch, Params
from flcog.functional.apply import Apply
from flcog.method import Context, Method


def proximal_term(params: Params, anchor: Params) -> Tensor:
    """Half the squared distance between two models, ``1/2 ||params - anchor||^2``.

    >>> proximal_term({"w": torch.tensor([3.0, 0.0])}, {"w": torch.tensor([1.0, 0.0])})
    tensor(2.)
    """
    return 0.5 * torch.stack([mse_loss(value, anchor[name], reduction="sum") for name, value in params.items()]).sum()


@dataclass(frozen=True)
class FedProx(Method):
    """Adds to every local loss the squared distance to the model the client received, so that unequal clients drift apart less.

    With x the received model, client k minimises over its own model y::

        F_k(y) + mu / 2 ||y - x||^2

    The distance is over parameters, without buffers (BatchNorm's statistics).

    Li et al., Federated Optimization in Heterogeneous Networks, MLSys 2020, https://arxiv.org/abs/1812.06127. The paper also lets
    clients do unequal work: add :class:`~flcog.callbacks.Stragglers` for that.

    Args:
        mu: strength of the pull, >= 0; 0 is FedAvg. The paper tunes it over 0.001, 0.01, 0.1 and 1.
    """

    mu: float = option(0.01, ">= 0")

    def loss(self, apply: Apply, params: Params, batch: Batch, task_loss: Tensor, ctx: Context) -> Tensor:
        return self.mu * proximal_term(params, ctx.received.params)
