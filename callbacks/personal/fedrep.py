"""FedRep: clients share the features and keep their own head."""

from collections.abc import Collection
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from flcog.callbacks.parts.parameters import HEAD, by_name
from flcog.callbacks.personal.keep_local import KeepLocal
from flcog.core.checks import option
from flcog.core.precision import count_on
from flcog.core.types import Batch, Params, Slot
from flcog.functional.apply import Apply
from flcog.method import Context, LocalParts


@dataclass(frozen=True)
class FedRep(LocalParts):
    """Splits the model: each client first trains a head of its own, which it keeps, and then the body, which the server averages.

    With body b and head h_k of client k, whose T local steps end with B = max(1, round(body_share T)) on the body::

        h_k <- T - B steps on F_k(b, h_k) by h_k alone
        b_k <- B steps on F_k(b, h_k) by b alone        b <- sum_k p_k b_k

    The part that is not trained does not change: neither momentum nor weight decay moves it, and the body's momentum starts at 0.
    That is exact for SGD in one parameter group; Adam's step counter continues, and AdamW's decay enters the body's moments.
    BatchNorm's statistics move in both phases and belong to the body. The global model's own head never trains, so look at
    ``test/personal_accuracy_mean`` (set ``data.client_test``). For this measurement the authors train the heads once more at the
    end.

    Collins et al., Exploiting Shared Representations for Personalized Federated Learning, ICML 2021,
    https://arxiv.org/abs/2102.07078; https://github.com/lgcollins/FedRep.

    Args:
        head: regular expression for the names of a client's own parameters.
        body_share: share of the local steps for the body, in (0, 1). The authors take 1/11 for CIFAR-10 and 5/15 for CIFAR-100.

    Example:
        >>> import flcog
        >>> sorted(FedRep().local(flcog.models.MLP(4, (8,), 3)))
        ['head.bias', 'head.weight']
    """

    head: str = HEAD
    body_share: float = option(0.1, "(0, 1)")

    excludes = KeepLocal.excludes

    def local(self, module: nn.Module) -> Collection[str]:
        return by_name(self.head, module.state_dict())

    def correct_gradient(self, gradient: Params, params: Params, ctx: Context) -> Params:
        return gradient_of_phase(gradient, params, ctx, ctx.state["own"], self.body_share)

    def after_step(self, apply: Apply, params: Params, before: Params, batch: Batch, ctx: Context) -> tuple[Params, Slot]:
        return params_of_phase(params, before, ctx, ctx.state["own"], self.body_share), ctx.state


def gradient_of_phase(gradient: Params, params: Params, ctx: Context, head: Collection[str], body_share: float) -> Params:
    """The gradient of the head in the first steps, and of the body in the last ones.

    The part that is not trained gets a gradient that cancels the optimiser's weight decay, so that it gathers no momentum.
    """
    on_head = _on_head(ctx, body_share)
    return {
        name: torch.where(on_head == (name in head), value, -ctx.optimisation.weight_decay * params[name])
        for name, value in gradient.items()
    }


def params_of_phase(params: Params, before: Params, ctx: Context, head: Collection[str], body_share: float) -> Params:
    """The parameters after a step that changes the trained part alone."""
    on_head, received = _on_head(ctx, body_share), ctx.received.params
    return {
        name: torch.where(on_head, *((value, before[name]) if name in head else (received[name], value)))
        for name, value in params.items()
    }


def _on_head(ctx: Context, body_share: float) -> Tensor:
    """Whether a step trains the head, as a tensor under both executors, so that both round the same way."""
    device = next(iter(ctx.received.params.values())).device
    num_steps, step = (count_on(device, value) for value in (ctx.num_steps, ctx.step))
    return step < num_steps - (num_steps.float() * body_share).round().clamp(min=1)
