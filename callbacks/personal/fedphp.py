"""FedPHP: each client inherits a private model, an average of its own models of earlier rounds, which supervises its training."""

from dataclasses import dataclass

import torch
from torch import Tensor

from flcog.core.checks import option
from flcog.core.types import Batch, Params, Slot
from flcog.functional.apply import Apply
from flcog.method import ClientView, Context, Personal, Personalisation, Upload


def discrepancy(features: Tensor, others: Tensor, mask: Tensor | None = None) -> Tensor:
    """The squared maximum mean discrepancy of two samples [B, d] over the rows of the mask, with five Gaussian kernels.

    Their bandwidths are 1/4 to 4 times the mean squared distance of two rows.

    >>> discrepancy(torch.tensor([[0.0], [1.0]]), torch.tensor([[1.0], [0.0]])).round(decimals=6)
    tensor(0.)
    """
    both = torch.cat([features, others])
    weights = torch.ones_like(features[:, 0]) if mask is None else mask.to(both.dtype)
    rows, signs = weights.sum().clamp(min=1), torch.cat([weights, -weights])
    apart = torch.cdist(both, both, compute_mode="donot_use_mm_for_euclid_dist").square()  # without a tensor of all differences
    pairs = signs[:, None] * signs
    mean = (pairs.abs() * apart).sum().detach() / (2 * rows * (2 * rows - 1)) + 1e-8
    kernel = torch.stack([torch.exp(-apart / (mean * factor)) for factor in (0.25, 0.5, 1, 2, 4)]).sum(0)
    return (pairs * kernel).sum() / rows.square()


@dataclass(frozen=True)
class FedPHP(Personalisation):
    """Pulls a client's features to its personal model's features. This model is a mean of the client's earlier models.

    With h the inherited model of client k, z and z_h the features of a batch in the trained and the inherited model, and MMD their squared
    maximum mean discrepancy, a client that has taken part in t rounds before trains y, and then averages::

        F_k(y) (1 - strength) + strength MMD(z, z_h)        h <- mu h + (1 - mu) y,    mu = inheritance min(1, t / rounds)

    The inherited model computes z_h in evaluation mode, with the received model's statistics. The first h is the given model. Nothing
    more is sent. The paper also compares transfer by outputs; this is its form by features.

    Li et al., FedPHP: Federated Personalization with Inherited Private Models, ECML PKDD 2021,
    https://doi.org/10.1007/978-3-030-86486-6_36; settings and discrepancy follow https://github.com/lxcnju/FedRepo.

    Args:
        strength: lambda, the share of the pull in the loss, in [0, 1]; the authors take 0.05 and 0.1.
        inheritance: the largest mu, in [0, 1].
        rounds: mu is largest after this number of rounds, >= 1. The authors take the rounds of a run times the share of the clients in
            each: the rounds in which a client takes part.
    """

    strength: float = option(0.1, "[0, 1]")
    inheritance: float = option(0.9, "[0, 1]")
    rounds: int = option(100, ">= 1")

    def init_client(self, params: Params, buffers: Params, client: ClientView) -> Slot:
        return {"inherited": dict(params), "times": next(iter(params.values())).new_zeros(())}

    def loss(self, apply: Apply, params: Params, batch: Batch, task_loss: Tensor, ctx: Context) -> Tensor:
        inherited = apply.frozen(ctx.state["inherited"], ctx.received.buffers).features(batch.inputs)
        return self.strength * (discrepancy(apply.features(params, batch.inputs), inherited, batch.mask) - task_loss)

    def finish_client(self, delta: Params, params: Params, ctx: Context) -> Upload:
        times = ctx.state["times"]
        mu = self.inheritance * (times / self.rounds).clamp(max=1)
        inherited = {name: mu * value + (1 - mu) * params[name] for name, value in ctx.state["inherited"].items()}
        return Upload(delta, {"inherited": inherited, "times": times + 1})

    def personal(self, params: Params, ctx: Context) -> Personal:
        return Personal(ctx.state["inherited"], own_statistics=True)
