"""q-FFL and AFL: clients with a large loss count more, so that the model serves all of them alike."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from flcog.callbacks.fedexp import square_norm
from flcog.core.checks import option
from flcog.core.types import Batch, Params, Slot
from flcog.functional.apply import Apply
from flcog.method import Cohort, Context, Messages, Method, Upload


def received_loss(apply: Apply, params: Params, batch: Batch) -> Slot:
    """The loss of the model that the client has received."""
    return {"loss": apply.frozen(*apply.received).loss(batch)}


@dataclass(frozen=True)
class QFFL(Method):
    """Takes the server's step of q-FedAvg, in which a client counts the more, the larger its loss is.

    With D_k client k's change, F_k the loss of the received model on all its samples, and L = 1 / lr for the local learning rate lr::

        x <- x + sum_k F_k^q L D_k / sum_k (q F_k^(q-1) ||L D_k||^2 + L F_k^q)

    The sum below normalises the step, so that one learning rate serves every q. It grows with the square of the number of local steps and
    of 1 / (1 - momentum): a large q asks for few local steps without momentum. All clients have the same aggregation weight. With q = 0
    this is FedAvg with ``EqualWeights``. A client passes once more over its data and sends one more number. A method that is listed later
    and changes what clients send, such as clipping, sees F_k^q L D_k.

    Li et al., Fair Resource Allocation in Federated Learning, ICLR 2020, https://arxiv.org/abs/1905.10497, Algorithm 2;
    https://github.com/litian96/fair_flearn.

    Args:
        q: how much fairness counts, >= 0. The authors take 0.001 to 15, depending on the data.
    """

    q: float = option(1.0, ">= 0")

    over_data = staticmethod(received_loss)

    def weights(self, weights: Tensor, messages: Sequence[Any], cohort: Cohort) -> Tensor:
        return torch.ones_like(weights)

    def finish_client(self, delta: Params, params: Params, ctx: Context) -> Upload:
        loss, scale = ctx.data.mean["loss"] + 1e-10, 1 / ctx.optimisation.lr
        norm = self.q * loss ** (self.q - 1) * scale**2 * square_norm(delta) + scale * loss**self.q
        return Upload({name: loss**self.q * scale * value for name, value in delta.items()}, ctx.state, mean={"norm": norm})

    def server_step(self, server: Slot, params: Params, delta: Params, messages: Messages, cohort: Cohort) -> tuple[Params, Slot]:
        return {name: value / messages.mean["norm"] for name, value in delta.items()}, server


def on_simplex(values: Tensor) -> Tensor:
    """The nearest weights that are not negative and sum to 1.

    >>> on_simplex(torch.tensor([0.9, 0.5, -1.0]))
    tensor([0.7000, 0.3000, 0.0000])
    """
    ordered = values.sort(descending=True).values
    excess = (ordered.cumsum(0) - 1) / torch.arange(1, len(values) + 1, device=values.device)
    return (values - excess[ordered > excess][-1]).clamp(min=0)


@dataclass(frozen=True)
class AFL(Method):
    """Minimises the loss of the worst mixture of clients: the server learns the weights of the mixture, as it learns the model.

    With D_k client k's change, F_k the loss of the received model on all its samples, and w a weight for each client of the run, which
    begins at 1 / N::

        x <- x + sum_{k in S} w_k D_k / sum_{k in S} w_k        w <- projection onto the simplex of (w + lr F_k for each k in S)

    The paper draws one client by w and another at random in a round of one step; here the round's clients stand for both. If no client of
    a round has a weight, its clients count the same. The server reads single clients' changes.

    Mohri et al., Agnostic Federated Learning, ICML 2019, https://arxiv.org/abs/1902.00146.

    Args:
        lr: learning rate of the weights, >= 0.
    """

    lr: float = option(0.1, ">= 0")

    individual_uploads = True
    over_data = staticmethod(received_loss)

    def finish_client(self, delta: Params, params: Params, ctx: Context) -> Upload:
        return Upload(delta, ctx.state, mean={"loss": ctx.data.mean["loss"]})

    def server_step(self, server: Slot, params: Params, delta: Params, messages: Messages, cohort: Cohort) -> tuple[Params, Slot]:
        losses = torch.stack([upload.mean["loss"] for upload in messages.individual])
        weights = server.get("weights", torch.full((cohort.num_clients,), 1 / cohort.num_clients)).to(losses)
        clients = torch.tensor([upload.client for upload in messages.individual], device=losses.device)
        own = weights[clients] if weights[clients].sum() > 0 else torch.ones_like(losses)
        shares = own / own.sum()
        changes = {
            name: torch.stack([upload.delta[name] for upload in messages.individual]) for name in messages.individual[0].delta
        }
        mean = {name: torch.tensordot(shares.to(each.dtype), each, 1) for name, each in changes.items()}
        weights = weights.clone()
        weights[clients] += self.lr * losses
        return delta | mean, {"weights": on_simplex(weights)}
