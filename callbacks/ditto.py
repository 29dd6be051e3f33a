"""Ditto: beside the global model every client trains one of its own, held near the global one."""

from dataclasses import dataclass

import torch
from torch import Tensor

from flcog.apply import Apply
from flcog.core.checks import at_least, positive
from flcog.core.types import Batch, Params, Slot
from flcog.hooks import Context, Method, Personal


@dataclass(frozen=True)
class Ditto(Method):
    """Leaves the global model's training as it is; each local step also moves the client's own model, on the same batch.

    With x the model received at the round's start and v_k client k's own, which it keeps::

        v_k <- v_k - lr [grad F_k(v_k) + lambda (v_k - x)]

    A client's first v_k is the first model it receives. Twice FedAvg's computation, none of it sent. v_k runs on batch statistics
    in training and on the global model's statistics in evaluation where there is BatchNorm. The paper weighs clients alike,
    sampled by their size: list ``EqualWeights`` for its mean.

    Li et al., Ditto: Fair and Robust Federated Learning Through Personalization, ICML 2021, https://arxiv.org/abs/2012.04221;
    https://github.com/litian96/ditto.

    Args:
        lambda_prox: lambda, how strongly v_k is pulled to x, >= 0; 0 trains every client for itself. The authors choose it among
            0.1, 1 and 2.
        lr: step of v_k, plain SGD's, > 0; None for the local optimiser's.

    Example:
        >>> Ditto(lambda_prox=0.1).init_client({"w": torch.ones(1)}, {})
        {'personal': {'w': tensor([1.])}}
    """

    lambda_prox: float = 1.0
    lr: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, 0, "lambda_prox")
        positive(self, "lr")

    def init_client(self, params: Params, buffers: Params) -> Slot:
        return {"personal": dict(params)}

    def after_step(self, apply: Apply, params: Params, batch: Batch, ctx: Context) -> tuple[Params, Slot]:
        def loss(own: Params) -> Tensor:
            # On copies of the buffers, so that this pass leaves the BatchNorm statistics of the client's global model alone.
            scratch = type(apply)(apply.model, {name: buffer.clone() for name, buffer in ctx.buffers.items()})
            return scratch.loss(own, batch)

        own, lr = ctx.client["personal"], ctx.optimisation.lr if self.lr is None else self.lr
        gradient = torch.func.grad(loss)(own)
        pull = {name: self.lambda_prox * (value - ctx.global_params[name]) for name, value in own.items()}
        return params, {"personal": {name: value - lr * (gradient[name] + pull[name]) for name, value in own.items()}}

    def personal(self, params: Params, ctx: Context) -> Personal:
        return Personal(ctx.client["personal"], own_statistics=True)
