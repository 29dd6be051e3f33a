"""Selection: a method that decides which clients take part in a round."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from flcog.core.randomness import sample_without_replacement
from flcog.core.types import Slot
from flcog.method.method import Method

Unbiased = bool | Literal["clients"]
"""Whether weights are unbiased: no; for the mean over all samples (true); or for the mean over all clients, which count the same."""


class Selected(NamedTuple):
    """The clients of a round, in the order of their tasks. There may be none.

    Args:
        clients: their numbers, each once.
        probabilities: the probability with which each of them is selected in this round, float64; None if it is unknown.
        weights: the weights of their changes, float64, which the server uses as they are. None weighs by samples or by the methods'
            ``weights``, and divides by the sum.
    """

    clients: Sequence[int]
    probabilities: Tensor | None = None
    weights: Tensor | None = None


class RoundRecord(NamedTuple):
    """The events of a finished round, for the selection of later rounds.

    Args:
        round: counted from 0.
        selected: the clients that were selected, in their order.
        trained: the clients whose updates count.
    """

    round: int
    selected: Sequence[int]
    trained: Sequence[int]


@dataclass(frozen=True)
class ClientPool:
    """All clients, among which the server selects. Only calls for single clients take time; most rounds touch few of many clients.

    Args:
        round: counted from 0.
        sizes: the size of each client's training set, int64 [num_clients].
        num_samples: the sum of these sizes.
        key: the key of the round's random numbers.
    """

    round: int
    sizes: Tensor
    num_samples: int
    key: int

    @property
    def num_clients(self) -> int:
        return len(self.sizes)

    def draw(self, count: int) -> list[int]:
        """Clients drawn uniformly without replacement: the selection of a run without a method for it."""
        return sample_without_replacement(self.num_clients, count, self.key)

    def weighted(self, unbiased: Unbiased, clients: Sequence[int], probabilities: Tensor | float) -> Selected:
        """Clients with their inclusion probabilities, and with Horvitz-Thompson weights if they are to be unbiased.

        The weights are w_k = (n_k / n) / pi_k for the mean over all samples, and (1 / N) / pi_k for the mean over all clients. Their
        expectation over the selections is the share of client k, whatever pi_k > 0. They sum to 1 in expectation alone.

        Args:
            unbiased: the mean that the weights estimate.
            clients: the selected clients.
            probabilities: their inclusion probabilities, or one that all of them have.
        """
        known = torch.as_tensor(probabilities, dtype=torch.float64).expand(len(clients))
        if not unbiased:
            return Selected(clients, known)
        chosen = torch.tensor(clients, dtype=torch.int64)
        shares = self.sizes[chosen].double() / self.num_samples if unbiased is True else 1 / self.num_clients
        return Selected(clients, known, shares / known)


@dataclass(frozen=True, kw_only=True)
class Selection(Method, protocol=True):
    """Selects the clients of each round. A run has at most one active selection; without it, clients are drawn uniformly.

    Its state belongs to the server, and checkpoints contain it.
    """

    def init_selection(self, num_clients: int) -> Slot:
        """The state before the first round, in tensors and primitives."""
        return {}

    def select(self, state: Slot, population: ClientPool, count: int, rng: torch.Generator) -> Selected:
        """The clients of a round. *Exclusive; plain Python.* It must not change the state.

        Args:
            state: the selection's.
            population: all clients.
            count: the number of clients that ``trainer.clients_per_round`` asks for.
            rng: keyed by seed, round and method.
        """
        raise NotImplementedError

    def update(self, state: Slot, record: RoundRecord) -> Slot:
        """The new state after a round. Values of the old state are never changed in place. *Own slot; plain Python.*"""
        return state

    def expected(self, count: int, num_clients: int) -> int:
        """The number of clients that a round is expected to have, for which executors plan.

        Args:
            count: the number that ``trainer.clients_per_round`` asks for.
            num_clients: the number of all clients.
        """
        return count


def selection_of(methods: Sequence[Method]) -> Selection | None:
    """The selection among some methods, if there is one."""
    return next((method for method in methods if isinstance(method, Selection)), None)
