"""FedPAC: clients align their features by class, and the server combines the heads of clients with like features for each client."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.optimize import nnls
from torch import Tensor

from flcog.callbacks.parts.parameters import by_name, head_weight
from flcog.callbacks.personal.fedproto import class_members, class_sums, distances, first_prototypes, new_prototypes
from flcog.callbacks.personal.fedrep import gradient_of_phase, params_of_phase
from flcog.callbacks.personal.kept_models import values_of, with_rows
from flcog.core.checks import option
from flcog.core.types import Batch, Params, Slot
from flcog.functional.apply import Apply
from flcog.method import ClientView, Cohort, Context, Messages, OwnDownload, Personal, Personalisation, Upload


def statistics(apply: Apply, params: Params, batch: Batch) -> Slot:
    """Sums of features by class, of the trained model for the prototypes, and of the received one for the combination of heads."""
    sums, features = class_sums(apply, params, batch), apply.frozen(*apply.received).features(batch.inputs)
    members, number = class_members(batch, len(sums["share"]), features.dtype)
    square = (members.sum(1) * features.square().sum(1)).sum() / number
    return {**sums, "received": members.T @ features / number, "square": square}


@dataclass(frozen=True)
class FedPAC(OwnDownload, Personalisation):
    """Averages the bodies of the clients, combines their heads for each client, and pulls features to common class means.

    A client starts from the global body and the head that the server has combined for it, trains the head, and then the body. With
    features z(x) of dimension d and the prototype P_c, the mean feature of class c over the clients of the last round::

        F_k = CE(h(z(x)), y) + strength mean_i (z_i(x) - P_y,i)^2

    The client also computes features with the received model. m_c is the sum of z(x) over its samples of class c, divided by n_k, the
    number of all its samples, and v = (mean ||z||^2 - sum_c ||m_c||^2) / n_k. It sends all m_c and v. The head of client k is then
    sum_j w_j h_j over the clients of the round. The weights are at least 0, have the sum 1, and minimise::

        sum_j w_j^2 v_j + sum_c || sum_j w_j (m_kc - m_jc) ||^2

    A client that has not taken part has the mean head. Its last model is its personal model, and at first the given one. The authors leave
    out small eigenvalues of this problem; here its exact solution counts.

    A client downloads one head more than with FedAvg, and the prototypes. The server keeps a head for each client.

    Xu et al., Personalized Federated Learning with Feature Alignment and Classifier Collaboration, ICLR 2023,
    https://arxiv.org/abs/2306.11867, Algorithm 1; https://github.com/JianXu95/FedPAC.

    Args:
        strength: lambda, the strength of the pull to the prototypes, >= 0.
        body_share: share of the local steps for the body, in (0, 1); the authors train the head for one epoch and the body for five.
    """

    strength: float = option(1.0, ">= 0")
    body_share: float = option(0.8, "(0, 1)")

    individual_uploads = True
    tasks = ("classification",)
    plain_batches = True
    excludes = {"LocalModels": "both keep models at the clients"}
    over_data = staticmethod(statistics)

    def init_server(self, params: Params) -> Slot:
        weight = head_weight(self, params)
        heads = {name: params[name].new_empty((0, *params[name].shape)) for name in by_name("head", params)}
        return {**first_prototypes(weight), "heads": heads, "has_head": torch.zeros(0, dtype=torch.bool)}

    def init_client(self, params: Params, buffers: Params, client: ClientView) -> Slot:
        return {"params": dict(params)}

    def broadcast(self, server: Slot) -> Slot:
        return {name: server[name] for name in ("prototypes", "is_known")}

    def send_to(self, server: Slot, params: Params, client: int, rng: torch.Generator) -> Mapping[str, Any]:
        known = len(server["has_head"]) > 0 and bool(server["has_head"][client])
        return {"head": {name: heads[client] if known else params[name] for name, heads in server["heads"].items()}}

    def start(self, apply: Apply, params: Params, ctx: Context) -> tuple[Params, Slot]:
        return params | ctx.broadcast["head"], {}

    def loss(self, apply: Apply, params: Params, batch: Batch, task_loss: Tensor, ctx: Context) -> Tensor:
        return self.strength * distances(apply, params, batch, ctx.broadcast)

    def correct_gradient(self, gradient: Params, params: Params, ctx: Context) -> Params:
        return gradient_of_phase(gradient, params, ctx, ctx.broadcast["head"], self.body_share)

    def after_step(self, apply: Apply, params: Params, before: Params, batch: Batch, ctx: Context) -> tuple[Params, Slot]:
        return params_of_phase(params, before, ctx, ctx.broadcast["head"], self.body_share), ctx.state

    def finish_client(self, delta: Params, params: Params, ctx: Context) -> Upload:
        number, found = ctx.data.num_samples, ctx.data.mean
        variance = (found["square"] - found["received"].square().sum()) / number
        sums = {name: found[name] * number for name in ("features", "share")}
        return Upload(delta, {"params": params}, mean={"features": found["received"], "variance": variance}, sum=sums)

    def server_step(self, server: Slot, params: Params, delta: Params, messages: Messages, cohort: Cohort) -> tuple[Params, Slot]:
        uploads, moved = messages.individual, new_prototypes(server, messages.sum)
        features = torch.stack([upload.mean["features"] for upload in uploads]).double().flatten(1).cpu().numpy()
        variances = torch.stack([upload.mean["variance"] for upload in uploads]).double().cpu().numpy()
        weights = torch.from_numpy(np.stack([combination(features - own, variances) for own in features]))
        clients, heads = torch.tensor([upload.client for upload in uploads]), {}
        for name, known in server["heads"].items():
            sent = values_of(name, params, uploads)
            heads[name] = with_rows(known, cohort.num_clients, clients, torch.tensordot(weights.to(sent), sent, 1))
        known = with_rows(server["has_head"], cohort.num_clients, clients, torch.ones(len(clients), dtype=torch.bool))
        return delta, {**moved, "heads": heads, "has_head": known}

    def personal(self, params: Params, ctx: Context) -> Personal:
        return Personal(ctx.state["params"], own_statistics=True)


def combination(gaps: np.ndarray, variances: np.ndarray) -> np.ndarray:
    """The weights of at least 0 and the sum 1 that minimise ``sum_j w_j^2 variances_j + || sum_j w_j gaps_j ||^2``.

    Without the condition on the sum, and with ``-2 sum_j w_j`` in its place, the minimum is a multiple of them: a problem of least squares.

    >>> combination(np.array([[1.0], [1.0], [9.0]]), np.array([0.1, 0.3, 0.1])).round(3).tolist()
    [0.75, 0.25, 0.0]
    """
    quadratic = gaps @ gaps.T + np.diag(variances.clip(min=1e-12))
    lower = np.linalg.cholesky(quadratic)
    weights, _ = nnls(lower.T, np.linalg.solve(lower, np.ones(len(gaps))))
    return weights / weights.sum()  # type: ignore[no-any-return]
