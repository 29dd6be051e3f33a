"""FedAMP: each client is pulled to a mixture of all clients' models, in which models like its own have more weight."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from flcog.callbacks.fedprox import proximal_term
from flcog.callbacks.personal.kept_models import KeptModels
from flcog.core.checks import option
from flcog.core.types import Batch, Params, Slot
from flcog.functional.apply import Apply
from flcog.method import Context


@dataclass(frozen=True)
class FedAMP(KeptModels):
    """Clients keep models of their own; the server sends each of them a mixture of all, and the client stays near it.

    With w_j the last model of client j, client k of the round receives u_k and goes on from its own last model::

        u_k = sum_j xi_j w_j        F_k(w) + strength / (2 alpha) ||w - u_k||^2

    The weights xi_j of the others follow from the distance to their models, and the client's own weight is the rest to 1::

        xi_j = alpha / sigma exp(-||w_k - w_j||^2 / sigma)

    With ``own_weight`` the client's own weight is given, and xi_j is proportional to exp(sigma cos(w_k, w_j)): HeurFedAMP, which the paper
    takes for deep networks, whose distances say little. In its first round a client receives the global model. Clients that have not
    trained have no weight. The paper's clients minimise their objective; these take the run's local steps.

    A client downloads two models, and the server keeps one for each client.

    Huang et al., Personalized Cross-Silo Federated Learning on Non-IID Data, AAAI 2021, https://arxiv.org/abs/2007.03797, Algorithm 1 and
    Section 5.

    Args:
        strength: lambda, the strength of the pull, >= 0; with 0 every client trains alone.
        alpha: the step size of the mixture, > 0.
        sigma: how far models attract each other; with ``own_weight`` how strongly likeness counts, > 0.
        own_weight: xi_k in HeurFedAMP, in [0, 1]; null for FedAMP.
    """

    strength: float = option(1.0, ">= 0")
    alpha: float = option(1.0, "> 0")
    sigma: float = option(1.0, "> 0")
    own_weight: float | None = option(None, "[0, 1]")

    def send_to(self, server: Slot, params: Params, client: int, rng: torch.Generator) -> Mapping[str, Any]:
        known, models = server["is_known"], server["models"]
        if not len(known) or not known[client]:
            return {"cloud": dict(params)}
        weights = self._weights(models, known, client)
        return {"cloud": {name: torch.tensordot(weights.to(value), value, 1) for name, value in models.items()}}

    def _weights(self, models: Params, known: Tensor, client: int) -> Tensor:
        """The weight of each client's model in the mixture of this client."""
        flat = [value.reshape(len(value), -1) for value in models.values()]
        if self.own_weight is None:
            distances = torch.stack([_squares(each - each[client]) for each in flat]).sum(0)
            weights = self.alpha / self.sigma * torch.exp(-distances / self.sigma)
        else:
            products = torch.stack([(each @ each[client]).double() for each in flat]).sum(0)
            norms = torch.stack([_squares(each) for each in flat]).sum(0).sqrt()
            likeness = products / (norms * norms[client]).clamp(min=1e-30)
            weights = torch.exp(self.sigma * (likeness - 1))
        weights = weights * known.to(weights.device)
        weights[client] = 0
        if self.own_weight is not None:
            weights = (1 - self.own_weight) * weights / weights.sum().clamp(min=1e-30)
        weights[client] = 1 - weights.sum()
        return weights

    def start(self, apply: Apply, params: Params, ctx: Context) -> tuple[Params, Slot]:
        return dict(ctx.state["params"]), {}

    def loss(self, apply: Apply, params: Params, batch: Batch, task_loss: Tensor, ctx: Context) -> Tensor:
        return self.strength / self.alpha * proximal_term(params, ctx.broadcast["cloud"])


def _squares(rows: Tensor) -> Tensor:
    return torch.linalg.vector_norm(rows, dim=1).double().square()
