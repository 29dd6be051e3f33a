"""FedDC: each client tracks the drift of its model from the global one, and corrects its update by that drift."""

from dataclasses import dataclass

import torch
from torch import Tensor

from flcog.callbacks.fedprox import proximal_term
from flcog.callbacks.scaffold import change_of_control
from flcog.core.checks import option
from flcog.core.types import Batch, Params, Slot
from flcog.functional.apply import Apply
from flcog.method import ClientView, Cohort, Context, Messages, Method, Upload


@dataclass(frozen=True)
class FedDC(Method):
    """Lets every client move away from the received model by the drift it has learnt, and corrects its gradient as SCAFFOLD does.

    Client k, with drift h_k and mean gradient g_k, trains y from x in K steps. The server keeps h and g, the means over all N
    clients, and updates them from the cohort S::

        F_k(y) + alpha / 2 ||y - (x - h_k)||^2 + <y, g - g_k>
        h_k <- h_k + (y - x)
        g_k' = g_k - g - (y - x) / (K lr)
        x <- mean_S y + h,  h <- h + (1 / N) sum_S (y - x),  g <- g + (1 / N) sum_S (g_k' - g_k),  h first

    All start at 0. K is the client's own number of steps, with local momentum counted in steps of plain SGD (see
    :class:`~flcog.callbacks.SCAFFOLD`). The mean is not weighted by samples: a method listed later may set other weights,
    as FedDisco does. The authors' code scales alpha and g by the client's share of the samples, 1 for equal clients. h_k and g_k follow
    the client's own change, h and g the decoded change, so lossy codecs need ``error_feedback``.

    Gao et al., FedDC: Federated Learning with Non-IID Data via Local Drift Decoupling and Correction, CVPR 2022,
    https://arxiv.org/abs/2203.11751.

    Args:
        alpha: strength of the pull to x - h_k, >= 0.
        evaluate_mean: whether to evaluate mean_S y, as FedDisco's comparison does, instead of the server's x. List methods with a
            server step (FedAvgM, FedExP, FedOpt's) before FedDC, which computes the mean from the last x.

    Example:
        >>> FedDC(alpha=0.1).evaluate_at({"h": {"w": torch.tensor([2.0])}}, {"w": torch.tensor([3.0])})
        {'w': tensor([1.])}
    """

    alpha: float = option(0.01, ">= 0")
    evaluate_mean: bool = True

    def init_server(self, params: Params) -> Slot:
        return {slot: {name: torch.zeros_like(value) for name, value in params.items()} for slot in ("h", "g")}

    def init_client(self, params: Params, buffers: Params, client: ClientView) -> Slot:
        return self.init_server(params)

    def weights(self, weights: Tensor, messages: object, cohort: Cohort) -> Tensor:
        return torch.ones_like(weights)

    def broadcast(self, server: Slot) -> Slot:
        return {"g": server["g"]}

    def loss(self, apply: Apply, params: Params, batch: Batch, task_loss: Tensor, ctx: Context) -> Tensor:
        anchor = {name: value - ctx.state["h"][name] for name, value in ctx.received.params.items()}
        return self.alpha * proximal_term(params, anchor)

    def correct_gradient(self, gradient: Params, params: Params, ctx: Context) -> Params:
        return {name: value + ctx.broadcast["g"][name] - ctx.state["g"][name] for name, value in gradient.items()}

    def finish_client(self, delta: Params, params: Params, ctx: Context) -> Upload:
        change = change_of_control(ctx.broadcast["g"], params, ctx, ctx.optimisation.effective_steps(ctx.num_steps))
        g = {name: value + change[name] for name, value in ctx.state["g"].items()}
        return Upload(delta, {"h": new_drift(delta, ctx), "g": g}, sum={"h": delta, "g": change})

    def server_step(self, server: Slot, params: Params, delta: Params, messages: Messages, cohort: Cohort) -> tuple[Params, Slot]:
        changes, n = messages.sum, cohort.num_clients
        new = {slot: {name: value + changes[slot][name] / n for name, value in means.items()} for slot, means in server.items()}
        return {name: value + new["h"][name] for name, value in delta.items()}, new

    def evaluate_at(self, server: Slot, params: Params) -> Params:
        return {name: value - server["h"][name] for name, value in params.items()} if self.evaluate_mean else params


def new_drift(delta: Params, ctx: Context) -> Params:
    """The client's new drift. It adds the uploaded change, so that the server's h stays the mean of the clients' drifts."""
    return {name: value + delta[name] for name, value in ctx.state["h"].items()}
