"""FedDC: each client tracks how far its model drifts from the global one, and what it sends is corrected by that drift."""

from dataclasses import dataclass

import torch
from torch import Tensor

from flcog.apply import Apply
from flcog.callbacks.fedprox import proximal_term
from flcog.core.checks import at_least
from flcog.core.types import Batch, Params, Slot
from flcog.hooks import Cohort, Context, Messages, Method, Upload


@dataclass(frozen=True)
class FedDC(Method):
    """Lets every client drift from the received model by what it learnt of its own drift, and corrects its gradient as SCAFFOLD does.

    Client k, with drift h_k and mean gradient g_k, trains y from x in K steps; the server keeps the means h and g of all N
    clients' and moves by the cohort S::

        F_k(y) + alpha / 2 ||y - (x - h_k)||^2 + <y, g - g_k>
        h_k <- h_k + (y - x)
        g_k' = g_k - g - (y - x) / (K lr)
        x <- mean_S y + h,  h <- h + (1 / N) sum_S (y - x),  g <- g + (1 / N) sum_S (g_k' - g_k),  h first

    All start at 0. K is the client's own number of steps, with local momentum counted in steps of plain SGD (see
    :class:`~flcog.callbacks.SCAFFOLD`). The mean is plain, not weighted by samples: a method listed later may set other weights,
    as FedDisco does. The authors' code scales alpha and g by the client's share of the samples, 1 for equal clients.

    Gao et al., FedDC: Federated Learning with Non-IID Data via Local Drift Decoupling and Correction, CVPR 2022,
    https://arxiv.org/abs/2203.11751.

    Args:
        alpha: strength of the pull to x - h_k, >= 0.
        evaluate_mean: whether to evaluate mean_S y, as FedDisco's comparison does, instead of the server's x.

    Example:
        >>> FedDC(alpha=0.1).evaluate_at({"h": {"w": torch.tensor([2.0])}}, {"w": torch.tensor([3.0])})
        {'w': tensor([1.])}
    """

    alpha: float = 0.01
    evaluate_mean: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, 0, "alpha")

    def init_server(self, params: Params) -> Slot:
        return {slot: {name: torch.zeros_like(value) for name, value in params.items()} for slot in ("h", "g")}

    def init_client(self, params: Params, buffers: Params) -> Slot:
        return {slot: {name: torch.zeros_like(value) for name, value in params.items()} for slot in ("h", "g")}

    def weights(self, weights: Tensor, reports: object, cohort: Cohort) -> Tensor:
        return torch.ones_like(weights)

    def broadcast(self, server: Slot) -> Slot:
        return {"g": server["g"]}

    def loss(self, apply: Apply, params: Params, batch: Batch, task_loss: Tensor, ctx: Context) -> Tensor:
        anchor = {name: value - ctx.client["h"][name] for name, value in ctx.global_params.items()}
        return self.alpha * proximal_term(params, anchor)

    def correct_gradient(self, gradient: Params, params: Params, ctx: Context) -> Params:
        return {name: value + ctx.server["g"][name] - ctx.client["g"][name] for name, value in gradient.items()}

    def finish_client(self, delta: Params, params: Params, ctx: Context) -> Upload:
        travelled = ctx.optimisation.lr * ctx.optimisation.effective_steps(ctx.num_steps)
        change = {name: (ctx.global_params[name] - value) / travelled - ctx.server["g"][name] for name, value in params.items()}
        # The drift is computed from the uploaded change, so that the server's h stays the mean of the clients' drifts.
        drift = {name: value + delta[name] for name, value in ctx.client["h"].items()}
        g = {name: value + change[name] for name, value in ctx.client["g"].items()}
        return Upload(delta, {"h": drift, "g": g}, sum={"delta": delta, "change": change})

    def server_step(self, server: Slot, params: Params, delta: Params, messages: Messages, cohort: Cohort) -> tuple[Params, Slot]:
        sums = {"h": messages.sum["delta"], "g": messages.sum["change"]}
        new = {s: {name: value + sums[s][name] / cohort.num_clients for name, value in server[s].items()} for s in ("h", "g")}
        return {name: value + new["h"][name] for name, value in delta.items()}, new

    def evaluate_at(self, server: Slot, params: Params) -> Params:
        return {name: value - server["h"][name] for name, value in params.items()} if self.evaluate_mean else params
