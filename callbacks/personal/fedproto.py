"""FedProto: clients share the mean features of each class instead of their models."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from flcog.callbacks.bounds import Local
from flcog.callbacks.feddm import MODEL_READERS
from flcog.callbacks.parts.parameters import head_weight
from flcog.core.checks import option
from flcog.core.trees import first_leaf
from flcog.core.types import Batch, Params, Slot
from flcog.functional.apply import Apply, masked_mean
from flcog.method import Cohort, Context, Messages, ParameterMask, Upload


def class_sums(apply: Apply, params: Params, batch: Batch) -> Slot:
    """For each class, the sum of its samples' features and their number, divided by the number of rows."""
    model = apply.frozen(params, apply.buffers)  # BatchNorm in training mode would mix the rows with padding
    features = model.features(batch.inputs)
    members, number = class_members(batch, model.head(features).shape[-1], features.dtype)
    return {"features": members.T @ features / number, "share": members.sum(0) / number}


def class_members(batch: Batch, num_classes: int, dtype: torch.dtype) -> tuple[Tensor, Tensor | int]:
    """Whether each row that counts has each class, as 1 or 0, and the number of such rows."""
    members = F.one_hot(first_leaf(batch.targets), num_classes).to(dtype)
    if batch.mask is None:
        return members, len(members)
    return members * batch.mask[:, None], batch.mask.sum().clamp(min=1)


def distances(apply: Apply, params: Params, batch: Batch, prototypes: Slot) -> Tensor:
    """The mean squared distance of the features from the prototypes of their classes, of which unknown ones count 0."""
    targets = first_leaf(batch.targets)
    near = F.embedding(targets, prototypes["prototypes"])
    apart = (apply.features(params, batch.inputs) - near).square().mean(1)
    return masked_mean(apart * prototypes["is_known"][targets], batch.mask)


def first_prototypes(head: Tensor) -> Slot:
    """The prototypes before the first round: no class has one yet."""
    return {"prototypes": torch.zeros_like(head), "is_known": head.new_zeros(len(head))}


def new_prototypes(prototypes: Slot, sums: Mapping[str, Tensor]) -> Slot:
    """The prototypes after a round with these sums of features and of samples over its clients, by class."""
    counts, means = sums["share"], sums["features"]
    found = (counts > 0).to(means.dtype)
    known = torch.where(found[:, None] > 0, means / counts.clamp(min=1)[:, None], prototypes["prototypes"])
    return {"prototypes": known, "is_known": torch.maximum(found, prototypes["is_known"])}


@dataclass(frozen=True)
class FedProto(Local, ParameterMask):
    """Keeps whole models at the clients; these share the mean features of each class, to which all clients pull their features.

    With z(x) client k's features, and P_c the prototype of class c, the mean features of all clients' samples of this class::

        F_k = CE(h(z(x)), y) + lambda mean_i (z_i(x) - P_y,i)^2        P_c <- sum_k sum_{x in k, y = c} z(x) / sum_k n_kc

    Classes that no client has sent have no pull. A client computes its sums after its local steps, by a pass over its data, and sends them
    and its label counts: classes times features, far less than a model. All clients begin with the same model. The paper's clients may
    have unlike networks, and predict by the nearest prototype; these have one network and predict by its head.

    Tan et al., FedProto: Federated Prototype Learning across Heterogeneous Clients, AAAI 2022, https://arxiv.org/abs/2105.00243.

    Args:
        strength: lambda, the strength of the pull, >= 0; with 0 every client trains alone.
    """

    strength: float = option(1.0, ">= 0")

    communicates = True
    tasks = ("classification",)
    plain_batches = True
    excludes = MODEL_READERS
    over_data = staticmethod(class_sums)

    def init_server(self, params: Params) -> Slot:
        return first_prototypes(head_weight(self, params))

    def mask(self, params: Params, client: int) -> dict[str, Tensor]:
        return dict.fromkeys(params, torch.tensor(False))

    def broadcast(self, server: Slot) -> Slot:
        return server

    def loss(self, apply: Apply, params: Params, batch: Batch, task_loss: Tensor, ctx: Context) -> Tensor:
        return self.strength * distances(apply, params, batch, ctx.broadcast)

    def finish_client(self, delta: Params, params: Params, ctx: Context) -> Upload:
        number = ctx.data.num_samples
        return Upload(None, {"params": params}, sum={name: value * number for name, value in ctx.data.mean.items()})

    def server_step(self, server: Slot, params: Params, delta: Params, messages: Messages, cohort: Cohort) -> tuple[Params, Slot]:
        return delta, new_prototypes(server, messages.sum)
