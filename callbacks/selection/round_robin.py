"""RoundRobin: clients take turns in the order of their numbers."""

from dataclasses import dataclass

import numpy as np
import torch

from flcog.core.types import Slot
from flcog.method import ClientPool, Participants, RoundRecord, Selection


@dataclass(frozen=True)
class RoundRobin(Selection):
    """Takes the next ``trainer.clients_per_round`` clients in the order of their numbers, and begins again after the last.

    ::

        S_t = {(t m) mod N, ..., (t m + m - 1) mod N}

    Clients that are not available are passed over. Otherwise every client takes part equally often. Nothing is random, so there are no
    inclusion probabilities and no unbiased weights: within a round, the mean change is that of the clients whose turn it is. If clients
    are ordered by their data, the model follows the order. Cho et al., On the Convergence of Federated Averaging with Cyclic Client
    Participation, ICML 2023, https://arxiv.org/abs/2302.03109.

    Example:
        >>> RoundRobin().update({}, RoundRecord(0, selected=[6, 7, 0], trained=[6, 7, 0]))
        {'next': tensor(1)}
    """

    def init_selection(self, num_clients: int) -> Slot:
        return {"next": torch.tensor(0)}

    def select(self, state: Slot, population: ClientPool, count: int, rng: torch.Generator) -> Participants:
        first, number, clients, searched = int(state["next"]), population.num_clients, list[int](), 0
        while len(clients) < count and searched < number:
            turns = (first + searched + np.arange(min(2 * count, number - searched))) % number
            clients += turns[population.available(turns)].tolist()
            searched += len(turns)
        return Participants(clients[:count])

    def update(self, state: Slot, record: RoundRecord) -> Slot:
        return {"next": torch.tensor(record.selected[-1] + 1)} if record.selected else state
