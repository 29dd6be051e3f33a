"""FedDyn: a dynamic regulariser, linear and quadratic, that aligns the clients' optima with the server's."""

from dataclasses import dataclass

import torch
from torch import Tensor

from flcog.callbacks.fedprox import proximal_term
from flcog.core.checks import option
from flcog.core.types import Batch, Params, Slot
from flcog.functional.apply import Apply
from flcog.method import ClientView, Cohort, Context, Messages, Method, Upload


def inner(left: Params, right: Params) -> Tensor:
    return torch.stack([(left[name] * value).sum() for name, value in right.items()]).sum()


@dataclass(frozen=True)
class FedDyn(Method):
    """Adds to every local loss a linear and a quadratic term, which cancel for a client that agrees with the server.

    Client k, with gradient state g_k, trains y from x. The server keeps h, and updates it from the cohort S, of N clients in
    all::

        F_k(y) - <g_k, y> + alpha / 2 ||y - x||^2
        g_k <- g_k - alpha (y - x)
        h <- h - (alpha / N) sum_S (y - x)
        x <- mean_S y - h / alpha

    All start at 0. The mean is not weighted by samples: a method listed later may set other weights, as FedDisco does; weights of
    methods listed earlier are replaced. The authors' code scales alpha by the client's share of the samples; the paper does not.

    Acar et al., Federated Learning Based on Dynamic Regularization, ICLR 2021, https://arxiv.org/abs/2111.04263.

    Args:
        alpha: strength of both terms, > 0.
        evaluate_mean: whether to evaluate mean_S y instead of the server's x. The paper's figures and the code of papers that
            compare with it evaluate mean_S y. List methods with a server step (FedAvgM, FedExP, FedOpt's) before FedDyn, which
            computes the mean from the last x.

    Example:
        >>> method, h = FedDyn(alpha=0.1), {"w": torch.tensor([0.5])}
        >>> method.evaluate_at({"h": h}, {"w": torch.tensor([1.0])})
        {'w': tensor([6.])}
    """

    alpha: float = option(0.01, "> 0")
    evaluate_mean: bool = True

    def init_server(self, params: Params) -> Slot:
        return {"h": {name: torch.zeros_like(value) for name, value in params.items()}}

    def init_client(self, params: Params, buffers: Params, client: ClientView) -> Slot:
        return {"g": {name: torch.zeros_like(value) for name, value in params.items()}}

    def weights(self, weights: Tensor, messages: object, cohort: Cohort) -> Tensor:
        return torch.ones_like(weights)

    def loss(self, apply: Apply, params: Params, batch: Batch, task_loss: Tensor, ctx: Context) -> Tensor:
        return self.alpha * proximal_term(params, ctx.received.params) - inner(ctx.state["g"], params)

    def finish_client(self, delta: Params, params: Params, ctx: Context) -> Upload:
        g = {name: ctx.state["g"][name] - self.alpha * (value - ctx.received.params[name]) for name, value in params.items()}
        return Upload(delta, {"g": g}, sum={"delta": delta})

    def server_step(self, server: Slot, params: Params, delta: Params, messages: Messages, cohort: Cohort) -> tuple[Params, Slot]:
        total = messages.sum["delta"]
        h = {name: value - self.alpha / cohort.num_clients * total[name] for name, value in server["h"].items()}
        return {name: value - h[name] / self.alpha for name, value in delta.items()}, {"h": h}

    def evaluate_at(self, server: Slot, params: Params) -> Params:
        if not self.evaluate_mean:
            return params
        return {name: value + server["h"][name] / self.alpha for name, value in params.items()}
