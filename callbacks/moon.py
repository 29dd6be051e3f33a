"""MOON: a contrastive loss pulls a client's features to the global model's and pushes them away from its own previous model's."""

import copy
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flcog.callbacks.parts.parameters import head_weight
from flcog.client_module import ClientModule
from flcog.core.checks import option
from flcog.core.trees import Tree, call
from flcog.core.types import Batch, Params, Slot
from flcog.functional.apply import Apply, masked_mean
from flcog.method import ClientView, Context, Method, Upload
from flcog.models import FeatureModel


def contrast(z: Tensor, near: Tensor, far: Tensor, temperature: float) -> Tensor:
    """Each row's contrastive loss between one positive and one negative, [B].

    >>> contrast(torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]]), torch.tensor([[0.0, 2.0]]), temperature=0.5)
    tensor([0.6931])
    """
    return -F.logsigmoid((F.cosine_similarity(z, near) - F.cosine_similarity(z, far)) / temperature)


class ProjectionModel(FeatureModel):
    """A network with a further hidden layer between its features and a new linear head."""

    def __init__(self, body: Any, width: int) -> None:
        super().__init__()
        before, self.num_features = body.num_features, width
        self.projection = nn.Sequential(nn.Linear(before, before), nn.ReLU(), nn.Linear(before, width))
        self.head = nn.Linear(width, body.head.out_features)
        self.body = body
        self.body.head = nn.Identity()

    def features(self, x: Tree) -> Tensor:
        return self.projection(call(self.body.features, x))


@dataclass(frozen=True)
class MOON(Method):
    """Adds to every local loss a contrast that pulls features z to the received model's and pushes them from the client's last model's.

    The positive z_glob comes from the received model, the negative z_prev from this client's last local model; without one, the
    term is 0. Both run in evaluation mode. With tau the temperature::

        F_k(y) + mu * mean(-log[ exp(cos(z, z_glob) / tau) / (exp(cos(z, z_glob) / tau) + exp(cos(z, z_prev) / tau)) ])

    A step costs three forward passes. A client keeps its last local model, also in the rounds before ``start_round``, so that the
    first round of contrast has negatives. The paper's z is a projection of the model's features that the head reads;
    FedCOG and FedDisco use the features themselves, which is ``projection=None``.

    Li et al., Model-Contrastive Federated Learning, CVPR 2021, https://arxiv.org/abs/2103.16257.

    Args:
        mu: strength of the contrast, >= 0; 0 without a projection is FedAvg. The paper tunes it over 0.1, 1, 5 and 10.
        temperature: tau, > 0.
        projection: width of the projection, >= 1, or None for no projection.
    """

    mu: float = option(1.0, ">= 0")
    temperature: float = option(0.5, "> 0")
    projection: int | None = option(256, ">= 1")

    def configure_model(self, model: ClientModule) -> ClientModule:
        if self.projection is None:
            return model
        # A copy, because the user's module may serve another run, which adds a projection of its own.
        model = copy.deepcopy(model)
        head_weight(self, model)
        model.model = ProjectionModel(model.model, self.projection)
        return model

    def active(self, round: int) -> bool:
        # The first contrast needs the local models of earlier rounds.
        return super().active(max(round, self.start_round))

    def draw(self, rng: torch.Generator, client: ClientView) -> Slot:
        return {"waits": torch.ones(())} if client.round < self.start_round else {}

    def init_client(self, params: Params, buffers: Params, client: ClientView) -> Slot:
        has_previous = next(iter(params.values())).new_zeros(())
        return {"params": dict(params), "buffers": dict(buffers), "has_previous": has_previous}

    def loss(self, apply: Apply, params: Params, batch: Batch, task_loss: Tensor, ctx: Context) -> Tensor:
        if ctx.draws:
            return torch.zeros_like(task_loss)
        z = apply.features(params, batch.inputs)
        near = apply.frozen(ctx.received.params, ctx.received.buffers).features(batch.inputs)
        far = apply.frozen(ctx.state["params"], ctx.state["buffers"]).features(batch.inputs)
        mean = masked_mean(contrast(z, near, far, self.temperature), batch.mask)
        return self.mu * ctx.state["has_previous"] * mean

    def finish_client(self, delta: Params, params: Params, ctx: Context) -> Upload:
        buffers = {name: ctx.buffers[name] for name in ctx.received.buffers}
        return Upload(delta, {"params": params, "buffers": buffers, "has_previous": torch.ones_like(ctx.state["has_previous"])})
