"""APFL: each client mixes the global model with a model of its own."""

from dataclasses import dataclass

import torch

from flcog.callbacks.fedreg import mix
from flcog.core.checks import option
from flcog.core.types import Batch, Params, Slot
from flcog.functional.apply import Apply
from flcog.method import ClientView, Context, Personal, Personalisation, Upload


@dataclass(frozen=True)
class APFL(Personalisation):
    """Leaves the global model's training as it is; each local step also moves the client's own model, as a part of a mixture.

    With w client k's copy of the global model, v its own model, and lr the local optimiser's learning rate, a step on a batch is::

        m <- alpha v + (1 - alpha) w        w <- the optimiser's step on F_k(w)        v <- v - lr alpha grad F_k(m)

    The mixture of v and of the last w is the client's personal model. With ``adaptive``, alpha is the client's, begins at the given
    value, and follows its gradient after each step: ``alpha <- alpha - lr <grad F_k(m), v - w>``, within [0, 1].

    The computation is twice FedAvg's, and nothing more is sent. A client keeps two models. With BatchNorm, m uses batch statistics in
    training and the statistics of the client's own samples in evaluation.

    Deng et al., Adaptive Personalized Federated Learning, 2020, https://arxiv.org/abs/2003.13461, Algorithm 1.

    Args:
        alpha: the share of the client's own model in the mixture, in [0, 1]; with 0 the personal model is the client's last copy of the
            global one, with 1 the client trains alone.
        adaptive: whether alpha follows its gradient.
    """

    alpha: float = option(0.5, "[0, 1]")
    adaptive: bool = False

    def init_client(self, params: Params, buffers: Params, client: ClientView) -> Slot:
        alpha = next(iter(params.values())).new_tensor(self.alpha)
        return {"own": dict(params), "mixed": dict(params), "alpha": alpha}

    def after_step(self, apply: Apply, params: Params, before: Params, batch: Batch, ctx: Context) -> tuple[Params, Slot]:
        own, alpha, lr = ctx.state["own"], ctx.state["alpha"], ctx.optimisation.lr
        gradient = apply.gradient(mix(alpha, own, before), batch)
        moved = {name: value - lr * alpha * gradient[name] for name, value in own.items()}
        if self.adaptive:
            slope = torch.stack([(gradient[name] * (value - before[name])).sum() for name, value in own.items()]).sum()
            alpha = (alpha - lr * slope).clamp(0, 1)
        return params, {**ctx.state, "own": moved, "alpha": alpha}

    def finish_client(self, delta: Params, params: Params, ctx: Context) -> Upload:
        return Upload(delta, {**ctx.state, "mixed": mix(ctx.state["alpha"], ctx.state["own"], params)})

    def personal(self, params: Params, ctx: Context) -> Personal:
        return Personal(ctx.state["mixed"], own_statistics=True)
