"""Which clients take part in a round, which of them are available, and how many local steps they take."""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from flcog.core.checks import option
from flcog.core.randomness import fold, fold_each, sample_without_replacement, uniform
from flcog.core.types import Slot
from flcog.method.client_view import ClientView
from flcog.method.method import Method

Unbiased = bool | Literal["clients"]
"""Whether weights are unbiased: no; for the mean over all samples (true); or for the mean over all clients, which count the same."""


class Participants(NamedTuple):
    """The clients of a round, in the order of their tasks. There may be none.

    Args:
        clients: their numbers, each once.
        probabilities: the probability of each of them to be selected in this round, float64; None if it is unknown.
        weights: the weights of their changes, float64, which the server uses as they are. None weighs by samples or by the methods'
            ``weights``, and divides by the sum.
        asked: the clients that downloaded the model and reported their losses for the selection. The engine fills this in.
    """

    clients: Sequence[int]
    probabilities: Tensor | None = None
    weights: Tensor | None = None
    asked: Sequence[int] = ()


class SamplingLaw(NamedTuple):
    """The law of cohorts that are drawn independently of the data and of other rounds, each client alike.

    Args:
        rate: the probability that a client is drawn, or the share of clients in a round.
        at_most: the largest number of clients in a round; None for no bound.
        fixed_size: whether every round has the same number of clients.
    """

    rate: float
    at_most: int | None = None
    fixed_size: bool = False


class RoundRecord(NamedTuple):
    """The events of a finished round, for the selection of later rounds.

    Args:
        round: counted from 0.
        selected: the clients that were selected, in their order.
        trained: the clients whose updates count.
        losses: the mean task loss of each of them in its training, if the selection declares ``reads_losses``.
        seconds: the simulated seconds that each client with a task needed, late ones included; empty without a clock.
        sizes: the number of samples of each client in ``trained``.
    """

    round: int
    selected: Sequence[int]
    trained: Sequence[int]
    losses: Sequence[float] = ()
    seconds: Mapping[int, float] = {}
    sizes: Sequence[int] = ()


@dataclass(frozen=True)
class ClientPool:
    """All clients, among which the server selects. Only calls for single clients take time; most rounds touch few of many clients.

    Args:
        round: counted from 0.
        sizes: the size of each client's training set, int64 [num_clients].
        num_samples: the sum of these sizes.
        key: the key of the round's random numbers.
        availability: tells which of some clients are available; None if all of them are.
        sample_ends: computes the running sum of the sizes once, int64 [num_clients].
        ask: asks clients for the loss of the global model on their data.
    """

    round: int
    sizes: Tensor
    num_samples: int
    key: int
    availability: Callable[[np.ndarray], np.ndarray] | None = None
    sample_ends: Callable[[], np.ndarray] | None = None
    ask: Callable[[Sequence[int]], list[float]] | None = None

    @property
    def num_clients(self) -> int:
        return len(self.sizes)

    def available(self, clients: Sequence[int] | np.ndarray) -> np.ndarray:
        """Whether each of these clients is available, bool [clients]."""
        numbers = np.asarray(clients, dtype=np.int64)
        return np.ones(len(numbers), bool) if self.availability is None else self.availability(numbers)

    def losses(self, clients: Sequence[int]) -> list[float]:
        """The mean loss of the global model on each client's training data; NaN for a client that does not answer.

        These clients download the model and report one number each. The ledger counts both.
        """
        assert self.ask is not None
        return self.ask(clients)

    def draw(self, count: int) -> list[int]:
        """Available clients drawn uniformly without replacement: the selection of a run without a method for it."""
        drawn = sample_without_replacement(self.num_clients, count, self.key)
        if self.availability is None:
            return drawn
        # Other clients replace clients that are not available. The result is uniform, because nothing tells available clients apart.
        present = [client for client, is_present in zip(drawn, self.available(drawn), strict=True) if is_present]
        if len(present) == count:
            return drawn
        return self._distinct(count, lambda keys: (keys % np.uint64(self.num_clients)).astype(np.int64), False, present)

    def draw_by_size(self, count: int) -> list[int]:
        """Available clients drawn one after another without replacement, with probabilities proportional to their sizes."""
        assert self.sample_ends is not None
        ends = self.sample_ends()

        def owners_of_random_samples(keys: np.ndarray) -> np.ndarray:
            # Whole numbers, because a search for others would convert the sizes of all clients.
            return np.searchsorted(ends, (uniform(keys) * ends[-1]).astype(np.int64), side="right")

        return self._distinct(count, owners_of_random_samples, True)

    def _distinct(
        self, count: int, propose: Callable[[np.ndarray], np.ndarray], by_size: bool, first: Sequence[int] = ()
    ) -> list[int]:
        """The first ``count`` distinct available clients of a random sequence, sorted.

        If many proposals have not sufficed, all clients are searched: most of them are not available, or all of them are wanted.

        Args:
            count: of clients. There are fewer if fewer are available.
            propose: makes clients, with repetitions, from random 64-bit keys.
            by_size: whether a client's probability is proportional to its size.
            first: the beginning of the sequence.
        """
        key = fold(self.key, "distinct", int(by_size))
        found: dict[int, None] = dict.fromkeys(first)
        position, block = 0, 2 * count + 16
        while len(found) < count and position < 2 * self.num_clients:
            proposed = propose(fold_each(key, np.arange(position, position + block)))
            for client in proposed[self.available(proposed)].tolist():
                if len(found) < count:
                    found[client] = None
            position, block = position + block, 2 * block
        if len(found) < count:
            everybody = np.arange(self.num_clients)
            rest = np.setdiff1d(everybody[self.available(everybody)], list(found))
            weights = self.sizes.numpy()[rest] if by_size else np.ones(len(rest))
            rest, weights = rest[weights > 0], weights[weights > 0]
            # The smallest of exponential variables with these rates belongs to a client with a probability proportional to its rate.
            order = np.argsort(-np.log1p(-uniform(fold_each(fold(key, "rest"), rest))) / weights)
            found |= dict.fromkeys(rest[order][: count - len(found)].tolist())
        return sorted(found)

    def weighted(self, unbiased: Unbiased, clients: Sequence[int], probabilities: Tensor | float | None) -> Participants:
        """Clients with their inclusion probabilities, and with Horvitz-Thompson weights if they are to be unbiased.

        The weights are w_k = (n_k / n) / pi_k for the mean over all samples, and (1 / N) / pi_k for the mean over all clients. Their
        expectation over the selections is the share of client k, whatever pi_k > 0. They sum to 1 in expectation alone.

        Args:
            unbiased: the mean that the weights estimate.
            clients: the selected clients.
            probabilities: their inclusion probabilities, or a number for all of them; None if they are unknown.
        """
        if probabilities is None:
            if unbiased:
                raise ValueError(
                    f"unbiased={unbiased} needs inclusion probabilities, which depend on the number of available clients and are unknown: "
                    "set unbiased to false, or remove the availability model"
                )
            return Participants(clients)
        known = torch.as_tensor(probabilities, dtype=torch.float64).expand(len(clients))
        if not unbiased:
            return Participants(clients, known)
        chosen = torch.tensor(clients, dtype=torch.int64)
        shares = self.sizes[chosen].double() / self.num_samples if unbiased is True else 1 / self.num_clients
        return Participants(clients, known, shares / known)


@dataclass(frozen=True, kw_only=True)
class Selection(Method, protocol=True):
    """Selects the clients of each round. A run has at most one active selection; without it, clients are drawn uniformly.

    Its state belongs to the server, and checkpoints contain it.
    """

    reads_losses: ClassVar[bool] = False
    """Whether ``update`` reads the training loss of each single client, which clients report with their updates."""

    @property
    def weighs(self) -> bool:
        """Whether ``select`` returns weights."""
        return bool(getattr(self, "unbiased", False))

    def check_clients(self, num_clients: int, count: int) -> None:
        """Refuse numbers that do not fit. Called once, before round 1.

        Args:
            num_clients: the number of all clients.
            count: the number that a round needs.
        """

    def init_selection(self, num_clients: int) -> Slot:
        """The state before the first round, in tensors and primitives."""
        return {}

    @abstractmethod
    def select(self, state: Slot, population: ClientPool, count: int, rng: torch.Generator) -> Participants:
        """The clients of a round. *Exclusive; plain Python.* It must not change the state.

        Args:
            state: the selection's.
            population: all clients. Only clients for which ``population.available`` is true may be selected.
            count: the number of clients that ``trainer.clients_per_round`` asks for.
            rng: keyed by seed, round and method.
        """

    def update(self, state: Slot, record: RoundRecord) -> Slot:
        """The new state after a round. Values of the old state are never changed in place. *Own slot; plain Python.*"""
        return state

    def law(self, count: int, num_clients: int) -> SamplingLaw | None:
        """The law of its cohorts, on which privacy relies; None if cohorts depend on anything else.

        Args:
            count: the number that ``trainer.clients_per_round`` asks for.
            num_clients: the number of all clients.
        """
        return None

    def expected(self, count: int, num_clients: int) -> int:
        """The number of clients that a round is expected to have, for which executors plan.

        Args:
            count: the number that ``trainer.clients_per_round`` asks for.
            num_clients: the number of all clients.
        """
        return count


@dataclass(frozen=True, kw_only=True)
class AvailabilityModel(Method, protocol=True):
    """Tells which clients are available at a time. A run has at most one active model; without it, all clients are available.

    Every selection asks it, and so does the uniform selection of a run without one.

    Args:
        seconds_per_round: the time from the start of a round to the start of the next one, > 0, in runs without a clock,
            and the length of a round without clients in runs with one.
    """

    seconds_per_round: float = option(600.0, "(0, inf)")

    def check_clients(self, num_clients: int) -> None:
        """Refuse data that do not fit the number of clients. Called once, before round 1."""

    @abstractmethod
    def available(self, clients: np.ndarray, seconds: float, seed: int) -> np.ndarray:
        """Whether each of some clients is available, bool [clients]. *Exclusive; plain Python.*

        The time must depend on the number of these clients, and not on the number of all clients.

        Args:
            clients: their numbers, int64.
            seconds: the time since the start of the run.
            seed: the run's seed, a key for random numbers.
        """


@dataclass(frozen=True, kw_only=True)
class Workload(Method, protocol=True):
    """Changes the clients' numbers of local steps, for slow devices, for example. If a run has several, each gets the earlier one's."""

    def plan(self, num_steps: int, client: ClientView, rng: torch.Generator) -> int | None:
        """The client's number of local steps in this round, or None if it drops out. *Chain; plain Python.*"""
        return num_steps
