"""PowerOfChoice: of some candidates, the clients with the highest losses train."""

import math
from dataclasses import dataclass

import torch

from flcog.core.checks import option, within
from flcog.core.types import Slot
from flcog.method import ClientPool, Participants, Selection


@dataclass(frozen=True)
class PowerOfChoice(Selection):
    """Draws candidates by their numbers of samples, asks them for the loss of the global model, and trains those with the highest losses.

    ::

        A = d clients, drawn without replacement in proportion to n_k,   S = the m clients of A with the largest F_k(x)

    Candidates download the model and report one number; ``comm/*`` count both. The mean change favours clients with a high loss, which
    makes the first rounds faster and moves the final model towards these clients: the more candidates, the more of both. The server
    sees single losses. A candidate that reports none, or NaN, is left out; if no candidate reports a number, the first m of them train.
    Where clients keep parts of the model, as with ``FedRep`` and ``Local``, x has no trained values of them: take ``Oort`` there.
    Cho et al., Towards Understanding Biased Client Selection in Federated Learning, AISTATS 2022, https://arxiv.org/abs/2010.01243,
    average the models with equal weights, which ``EqualWeights`` does.

    Args:
        candidates: d, at least ``trainer.clients_per_round`` and at most all clients. None takes twice as many as train.
    """

    candidates: int | None = option(None, ">= 1")

    def check_clients(self, num_clients: int, count: int) -> None:
        within(self, f"[{count}, {num_clients}]", "candidates")

    def select(self, state: Slot, population: ClientPool, count: int, rng: torch.Generator) -> Participants:
        drawn = population.draw_by_size(self.candidates or min(2 * count, population.num_clients))
        losses = dict(zip(drawn, population.losses(drawn), strict=True))
        known = [client for client in drawn if not math.isnan(losses[client])] or drawn
        return Participants(sorted(sorted(known, key=lambda client: -losses[client])[:count]))
