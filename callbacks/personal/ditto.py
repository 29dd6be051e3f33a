"""Ditto: each client also trains a model of its own, held near the global model."""

from dataclasses import dataclass

import torch

from flcog.core.checks import option
from flcog.core.precision import count_on
from flcog.core.types import Batch, Params, Slot
from flcog.functional.apply import Apply
from flcog.method import ClientView, Context, Personal, Personalisation


@dataclass(frozen=True)
class Ditto(Personalisation):
    """Does not change the global model's training; each local step also moves the client's own model, on the same batch.

    With x the model received at the start of the round, and v_k client k's own model, which the client keeps::

        v_k <- v_k - lr [grad F_k(v_k) + lambda (v_k - x)]

    The paper and its code take plain steps for v_k, and plain SGD for the global model too. If the local optimiser has momentum
    r, a plain v_k learns 1 / (1 - r) times more slowly than the global model; ``momentum: null`` gives both the same momentum.

    A client's first v_k is the first model it receives. The computation is twice FedAvg's, and nothing more is sent. With
    BatchNorm, v_k uses batch statistics in training and the statistics of the client's own samples in evaluation. The paper samples
    clients by their size and weights them equally: list ``EqualWeights`` for its mean.

    Li et al., Ditto: Fair and Robust Federated Learning Through Personalization, ICML 2021, https://arxiv.org/abs/2012.04221;
    https://github.com/litian96/ditto.

    Args:
        lambda_prox: lambda, the strength of the pull of v_k to x, >= 0; with 0 every client trains alone. The authors choose it
            among 0.1, 1 and 2.
        lr: learning rate for v_k, > 0; None for the local optimiser's.
        momentum: momentum for v_k, in [0, 1), starting at 0 in every round as the local optimiser's does; None for the local
            optimiser's.

    Example:
        >>> Ditto(lambda_prox=0.1).init_client({"w": torch.ones(1)}, {}, None)
        {'personal': {'w': tensor([1.])}}
    """

    lambda_prox: float = option(1.0, ">= 0")
    lr: float | None = option(None, "> 0")
    momentum: float | None = option(0.0, "[0, 1)")

    def init_client(self, params: Params, buffers: Params, client: ClientView) -> Slot:
        velocity = {} if self.momentum == 0 else {"velocity": {name: torch.zeros_like(value) for name, value in params.items()}}
        return {"personal": dict(params)} | velocity

    def after_step(self, apply: Apply, params: Params, before: Params, batch: Batch, ctx: Context) -> tuple[Params, Slot]:
        own, lr = ctx.state["personal"], ctx.optimisation.lr if self.lr is None else self.lr
        # This pass does not change the BatchNorm statistics of the client's global model.
        gradient = apply.gradient(own, batch)
        pull = {name: self.lambda_prox * (value - ctx.received.params[name]) for name, value in own.items()}
        move = {name: gradient[name] + pull[name] for name in own}
        if self.momentum == 0:
            return params, {"personal": {name: value - lr * move[name] for name, value in own.items()}}
        momentum = ctx.optimisation.momentum if self.momentum is None else self.momentum
        kept = count_on(next(iter(own.values())).device, ctx.step) > 0  # the momentum starts at 0 in each round
        move = {name: momentum * kept * ctx.state["velocity"][name] + value for name, value in move.items()}
        return params, {"personal": {name: value - lr * move[name] for name, value in own.items()}, "velocity": move}

    def personal(self, params: Params, ctx: Context) -> Personal:
        return Personal(ctx.state["personal"], own_statistics=True)
