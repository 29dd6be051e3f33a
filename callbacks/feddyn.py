"""FedDyn: a dynamic regulariser, linear and quadratic, that aligns the clients' optima with the server's."""

from dataclasses import dataclass

import torch
from torch import Tensor

from flcog.callbacks.fedprox import proximal_term
from flcog.callbacks.parts.relative_size import relative_size
from flcog.core.checks import positive
from flcog.core.types import Batch, Params, Slot
from flcog.functional.apply import Apply
from flcog.method import ClientView, Cohort, Context, Messages, Method, Upload
from flcog.method.gradient_clip import clip


def _inner(left: Params, right: Params) -> Tensor:
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
            compare with it evaluate mean_S y.

    Example:
        >>> method, h = FedDyn(alpha=0.1), {"w": torch.tensor([0.5])}
        >>> method.evaluate_at({"h": h}, {"w": torch.tensor([1.0])})
        {'w': tensor([6.])}
    """

    alpha: float = 0.01
    evaluate_mean: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        positive(self, "alpha")

    def init_server(self, params: Params) -> Slot:
        return {"h": {name: torch.zeros_like(value) for name, value in params.items()}}

    def init_client(self, params: Params, buffers: Params, client: ClientView) -> Slot:
        return {"g": {name: torch.zeros_like(value) for name, value in params.items()}}

    def weights(self, weights: Tensor, messages: object, cohort: Cohort) -> Tensor:
        return torch.ones_like(weights)

    def loss(self, apply: Apply, params: Params, batch: Batch, task_loss: Tensor, ctx: Context) -> Tensor:
        return self.alpha * proximal_term(params, ctx.received.params) - _inner(ctx.state["g"], params)

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

    Example:
        >>> FedDynInFedDisco(alpha=0.1).alpha
        0.1
    """

    def draw(self, rng: torch.Generator, client: ClientView) -> Slot:
        return {"relative_size": relative_size(client)}

    def loss(self, apply: Apply, params: Params, batch: Batch, task_loss: Tensor, ctx: Context) -> Tensor:
        along = {name: value + self.alpha * ctx.received.params[name] for name, value in ctx.state["g"].items()}
        return -_inner(along, params) / ctx.draws["relative_size"]

    def correct_gradient(self, gradient: Params, params: Params, ctx: Context) -> Params:
        return {name: value + self.alpha * params[name] for name, value in clip(gradient, 10.0).items()}
