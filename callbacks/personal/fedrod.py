"""FedRoD: one balanced head for all, and one head of each client's own."""

import copy
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flcog.callbacks.parts.parameters import head_weight
from flcog.callbacks.personal.keep_local import KeepLocal
from flcog.client_module import ClientModule
from flcog.core.trees import first_leaf
from flcog.core.types import Batch, Params, Slot
from flcog.functional.apply import Apply, masked_mean
from flcog.method import ClientView, Context, LocalParts, Method


class TwoHeads(nn.Module):
    """The sum of a shared head and of a client's own, which begins at 0."""

    def __init__(self, shared: nn.Module) -> None:
        super().__init__()
        self.shared, self.own = shared, copy.deepcopy(shared)
        for value in self.own.parameters():
            nn.init.zeros_(value)

    def forward(self, features: Tensor) -> Tensor:
        return self.shared(features) + self.own(features)


def with_head(method: Method, model: ClientModule, wrap: Callable[[Any], nn.Module]) -> ClientModule:
    """A copy of the model with another head, because the user's module may serve another run."""
    model = copy.deepcopy(model)
    head_weight(method, model)
    model.model.head = wrap(model.model.head)
    return model


@dataclass(frozen=True)
class FedRoD(LocalParts):
    """Trains body and shared head by a balanced loss, and at each client a head of its own by the client's loss.

    With z the features of body b, the shared head h, client k's own head p_k, which it keeps, and n_k the counts of its labels::

        (b, h) <- step on CE(h(z) + log n_k, y)        p_k <- step on CE(stop[h(z)] + p_k(stop[z]), y)

    The first loss is the balanced softmax, whose optimum does not depend on how often a client has a class. The shared model (b, h) is
    the global one, and h + p_k on b is client k's own. p_k begins at 0.

    Chen and Chao, On Bridging Generic and Personalized Federated Learning for Image Classification, ICLR 2022,
    https://arxiv.org/abs/2107.00778, with the balanced softmax and the linear personal head.
    """

    tasks = ("classification",)
    excludes = {**KeepLocal.excludes, "VHL": "it adds outputs to a linear head"}

    def configure_model(self, model: ClientModule) -> ClientModule:
        return with_head(self, model, TwoHeads)

    def local(self, module: nn.Module) -> Collection[str]:
        return [name for name in module.state_dict() if ".head.own." in name]

    def draw(self, rng: torch.Generator, client: ClientView) -> Slot:
        return {"counts": client.label_counts.to(torch.get_default_dtype())}

    def loss(self, apply: Apply, params: Params, batch: Batch, task_loss: Tensor, ctx: Context) -> Tensor:
        targets, none = first_leaf(batch.targets), {name: torch.zeros_like(value) for name, value in ctx.state["own"].items()}
        features = apply.features(params, batch.inputs)
        shared = {name: value for name, value in params.items() if name not in none}
        generic = apply.head(shared | none, features)
        both = apply.head(params | {name: value.detach() for name, value in shared.items()}, features.detach())
        balanced = F.cross_entropy(generic + ctx.draws["counts"].clamp(min=1e-8).log(), targets, reduction="none")
        losses = balanced + F.cross_entropy(both, targets, reduction="none")
        return masked_mean(losses, batch.mask) - task_loss
