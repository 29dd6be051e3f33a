"""FedDBE: each client's bias of the features stays at the client, and shared features have one mean."""

from collections.abc import Collection
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from flcog.callbacks.personal.fedrod import FedRoD, with_head
from flcog.client_module import ClientModule
from flcog.core.checks import option
from flcog.core.precision import count_on
from flcog.core.types import Batch, Params, Slot
from flcog.functional.apply import Apply
from flcog.method import ClientView, Cohort, Context, LocalParts, Messages, Upload


class BiasedHead(nn.Module):
    """A linear head after a bias of the features, which begins at 0."""

    def __init__(self, head: nn.Linear) -> None:
        super().__init__()
        self.head, self.feature_bias = head, nn.Parameter(torch.zeros(head.in_features))

    def forward(self, features: Tensor) -> Tensor:
        return self.head(features + self.feature_bias)


@dataclass(frozen=True)
class FedDBE(LocalParts):
    """Stores what is special about a client's features in a bias of its own, and pulls the features' mean to the clients' common mean.

    With z the features of a batch, a_k client k's bias, which it keeps, and head h, the clients' loss is::

        F_k = CE(h(z + a_k), y) + kappa / 2 mean_i (m_i - c_i)^2,        m <- (1 - momentum) m + momentum mean(z) in each step

    m begins at 0 in each round. The consensus c is the weighted mean of the m with which the clients of the first round end; that round
    has no second term. The paper lets all clients train once for c before the first round. A client sends m in each round.

    Zhang et al., Eliminating Domain Bias for Federated Learning in Representation Space, NeurIPS 2023,
    https://arxiv.org/abs/2311.14975; https://github.com/TsingZ0/DBE.

    Args:
        kappa: strength of the pull to the common mean, >= 0.
        momentum: share of the last batch in the mean of the features, in (0, 1].
    """

    kappa: float = option(1.0, ">= 0")
    momentum: float = option(0.1, "(0, 1]")

    excludes = FedRoD.excludes

    def configure_model(self, model: ClientModule) -> ClientModule:
        return with_head(self, model, BiasedHead)

    def local(self, module: nn.Module) -> Collection[str]:
        return [name for name, _ in module.named_parameters() if name.endswith(".feature_bias")]

    def init_server(self, params: Params) -> Slot:
        (bias,) = params.values()
        return {"consensus": torch.zeros_like(bias), "is_known": bias.new_zeros(())}

    def init_client(self, params: Params, buffers: Params, client: ClientView) -> Slot:
        (bias,) = params.values()
        return {**super().init_client(params, buffers, client), "mean": torch.zeros_like(bias)}

    def broadcast(self, server: Slot) -> Slot:
        return server

    def loss(self, apply: Apply, params: Params, batch: Batch, task_loss: Tensor, ctx: Context) -> Tensor:
        distance = self._mean(apply, params, batch, ctx) - ctx.broadcast["consensus"]
        return self.kappa / 2 * ctx.broadcast["is_known"] * distance.square().mean()

    def after_step(self, apply: Apply, params: Params, before: Params, batch: Batch, ctx: Context) -> tuple[Params, Slot]:
        return params, {**ctx.state, "mean": self._mean(apply.scratch(), before, batch, ctx)}

    def _mean(self, apply: Apply, params: Params, batch: Batch, ctx: Context) -> Tensor:
        features = apply.features(params, batch.inputs)
        rows = torch.ones_like(features[:, 0]) if batch.mask is None else batch.mask.to(features.dtype)
        last = (features * rows[:, None]).sum(0) / rows.sum().clamp(min=1)
        kept = count_on(last.device, ctx.step) > 0  # the mean begins at 0 in each round
        return (1 - self.momentum) * kept * ctx.state["mean"] + self.momentum * last

    def finish_client(self, delta: Params, params: Params, ctx: Context) -> Upload:
        return Upload(delta, ctx.state, mean={"mean": ctx.state["mean"]})

    def server_step(self, server: Slot, params: Params, delta: Params, messages: Messages, cohort: Cohort) -> tuple[Params, Slot]:
        consensus = torch.where(server["is_known"] > 0, server["consensus"], messages.mean["mean"])
        return delta, {"consensus": consensus, "is_known": torch.ones_like(server["is_known"])}
