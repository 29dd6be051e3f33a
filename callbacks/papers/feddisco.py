"""The methods that the program of FedDisco compares with in forms of its own.

Ye et al., FedDisco: Federated Learning with Discrepancy-Aware Collaboration, ICML 2023, https://arxiv.org/abs/2305.19229;
https://github.com/MediaBrain-SJTU/FedDisco.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from flcog.callbacks.fedavgm import FedAvgM, momentum_step
from flcog.callbacks.feddc import FedDC, new_drift
from flcog.callbacks.feddyn import FedDyn, inner
from flcog.callbacks.fednova import FedNova
from flcog.callbacks.scaffold import SCAFFOLD
from flcog.core.checks import option
from flcog.core.precision import number_dtype
from flcog.core.types import Batch, Params, Slot
from flcog.functional.apply import Apply
from flcog.method import ClientView, Cohort, Context, Messages, Upload
from flcog.method.gradient_clip import clip


def relative_size(client: ClientView) -> Tensor:
    """``N n_k / sum_j n_j`` over all N clients of the run: 1 if all clients are equally large.

    FedDyn and FedDC divide the strength of their terms by it in their authors' code: the local loss is a mean over the client's
    own samples, so each sample of a small client counts for more.

    >>> from flcog.method import Population
    >>> relative_size(ClientView(0, 15, 0, Population(3, 90, "classification", 10)))
    tensor(0.5000)
    """
    return torch.tensor(client.num_samples / client.population.mean_size, dtype=number_dtype())


@dataclass(frozen=True)
class FedAvgMInFedDisco(FedAvgM):
    """Gives the server momentum as the program of FedDisco does for its baseline: the velocity is a running mean, not a sum.

    ::

        v <- beta v + (1 - beta) D
        x <- x + lr v

    With a constant D the step grows to lr D.

    Ye et al., FedDisco: Federated Learning with Discrepancy-Aware Collaboration, ICML 2023, https://arxiv.org/abs/2305.19229;
    https://github.com/MediaBrain-SJTU/FedDisco.

    Args:
        beta: momentum, in [0, 1); 0 is FedAvg.
        lr: the server's step size, > 0.
    """

    def server_step(self, server: Slot, params: Params, delta: Params, messages: Messages, cohort: Cohort) -> tuple[Params, Slot]:
        return momentum_step(server["velocity"], delta, self.beta, 1 - self.beta, self.lr)


@dataclass(frozen=True)
class FedDCInFedDisco(FedDC):
    """Lets clients drift as the program of FedDisco does for its baseline: without FedDC's correction of the gradient.

    The program computes the correction but never adds it, so this class neither keeps nor sends g. With w_k the client's number
    of samples over the clients' mean number, it clips the gradient of this loss to a norm of 10::

        F_k(y) + alpha / (2 w_k) ||y - (x - h_k)||^2

    Drifts and the server's step are FedDC's.

    Ye et al., FedDisco: Federated Learning with Discrepancy-Aware Collaboration, ICML 2023, https://arxiv.org/abs/2305.19229;
    https://github.com/MediaBrain-SJTU/FedDisco.

    Args:
        alpha: strength of the pull to x - h_k, >= 0.
        evaluate_mean: whether to evaluate the clients' mean, as FedDisco's comparison does, instead of the server's x.

    Example:
        >>> list(FedDCInFedDisco().init_server({"w": torch.ones(2)}))
        ['h']
    """

    def init_server(self, params: Params) -> Slot:
        return {"h": {name: torch.zeros_like(value) for name, value in params.items()}}

    def broadcast(self, server: Slot) -> Slot:
        return {}

    def draw(self, rng: torch.Generator, client: ClientView) -> Slot:
        return {"relative_size": relative_size(client)}

    def loss(self, apply: Apply, params: Params, batch: Batch, task_loss: Tensor, ctx: Context) -> Tensor:
        return super().loss(apply, params, batch, task_loss, ctx) / ctx.draws["relative_size"]

    def correct_gradient(self, gradient: Params, params: Params, ctx: Context) -> Params:
        return clip(gradient, 10.0)

    def finish_client(self, delta: Params, params: Params, ctx: Context) -> Upload:
        return Upload(delta, {"h": new_drift(delta, ctx)}, sum={"h": delta})


@dataclass(frozen=True)
class FedDynInFedDisco(FedDyn):
    """Adds FedDyn's two terms as the program of FedDisco does for its baseline: the client's size scales only the linear term.

    With w_k the client's number of samples over the clients' mean number, the quadratic term acts as a weight decay that is added
    to the gradient after clipping::

        gradient of F_k(y) - <g_k + alpha x, y> / w_k, clipped to a norm of 10, plus alpha y

    States and the server's step are FedDyn's.

    Ye et al., FedDisco: Federated Learning with Discrepancy-Aware Collaboration, ICML 2023, https://arxiv.org/abs/2305.19229;
    https://github.com/MediaBrain-SJTU/FedDisco.

    Args:
        alpha: strength of both terms, > 0.
        evaluate_mean: whether to evaluate the clients' mean instead of the server's x.
    """

    def draw(self, rng: torch.Generator, client: ClientView) -> Slot:
        return {"relative_size": relative_size(client)}

    def loss(self, apply: Apply, params: Params, batch: Batch, task_loss: Tensor, ctx: Context) -> Tensor:
        along = {name: value + self.alpha * ctx.received.params[name] for name, value in ctx.state["g"].items()}
        return -inner(along, params) / ctx.draws["relative_size"]

    def correct_gradient(self, gradient: Params, params: Params, ctx: Context) -> Params:
        return {name: value + self.alpha * params[name] for name, value in clip(gradient, 10.0).items()}


@dataclass(frozen=True)
class FedNovaInFedDisco(FedNova):
    """Averages updates per step as the program of FedDisco does for its baseline: it counts the full batches of one pass.

    The count depends neither on the client's steps in the round nor on its momentum::

        a_k = n_k // batch_size

    The program divides by zero for a client without a full batch. Here such a client counts as one batch.

    Ye et al., FedDisco: Federated Learning with Discrepancy-Aware Collaboration, ICML 2023, https://arxiv.org/abs/2305.19229;
    https://github.com/MediaBrain-SJTU/FedDisco.

    Args:
        batch_size: batch size of the data, >= 1.
    """

    batch_size: int = option(64, ">= 1")

    def _steps(self, ctx: Context) -> Tensor:
        return (torch.as_tensor(ctx.data.num_samples) // self.batch_size).clamp(min=1).to(number_dtype())


@dataclass(frozen=True)
class SCAFFOLDInFedDisco(SCAFFOLD):
    """Corrects clients as the programs of FedDisco and NIID-Bench do: the correction moves the model after the optimiser's step.

    The correction does not pass through the momentum, and K counts the actual steps::

        y <- y - lr (c - c_k)  after each step

    c is then up to 1 / (1 - r) times a gradient, but momentum does not lengthen it again. To first order this is SCAFFOLD. It is
    for SGD without dampening or Nesterov momentum.

    Ye et al., FedDisco: Federated Learning with Discrepancy-Aware Collaboration, ICML 2023, https://arxiv.org/abs/2305.19229;
    https://github.com/MediaBrain-SJTU/FedDisco.

    Args:
        server_lr: the server's step size, > 0.
    """

    def _steps(self, ctx: Context) -> Tensor | int | float:
        return ctx.num_steps

    def correct_gradient(self, gradient: Params, params: Params, ctx: Context) -> Params:
        own, mean = ctx.state["c"], ctx.broadcast["c"]
        # Momentum r repeats the first step's correction r times as large in the second step, and so on. Later steps add only 1 -
        # r of the correction. The velocity then contains c - c_k in every step, as if each step itself had been corrected.
        added = 1 - ctx.optimisation.momentum * (ctx.step > 0)
        return {name: value + added * (mean[name] - own[name]) for name, value in gradient.items()}
