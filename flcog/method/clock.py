"""Simulated time: how long clients take, and methods that end a round before all clients have finished."""

from abc import abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from torch import Tensor

from flcog.method.method import Method


class Work(NamedTuple):
    """The work of some clients, with an entry for each client in every array.

    Args:
        clients: their numbers, int64.
        steps: local steps. A forward pass over a batch counts as a third of a step.
        down, up: bytes that the client receives and sends.
    """

    clients: np.ndarray
    steps: np.ndarray
    down: np.ndarray
    up: np.ndarray


@dataclass(frozen=True, kw_only=True)
class Clock(Method, protocol=True):
    """Tells how long clients take, in simulated seconds. A run has at most one clock. The engine adds up the time of the rounds."""

    def check_clients(self, num_clients: int) -> None:
        """Refuse data that do not fit the number of clients. Called once, before round 1."""

    @abstractmethod
    def seconds(self, work: Work, seed: int) -> np.ndarray:
        """The seconds that each client needs, float64 [clients]. *Exclusive; plain Python.*

        The time must depend on the number of these clients, and not on the number of all clients.

        Args:
            work: of some clients.
            seed: the run's seed, a key for random numbers.
        """


class RoundEnd(NamedTuple):
    """The end of a round.

    Args:
        clients: the clients whose uploads count.
        seconds: the end, in seconds after the server has sent the tasks.
    """

    clients: Collection[int]
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Cutoff(Method, protocol=True):
    """Ends a round before all clients have finished. The uploads of late clients do not count, and their states do not change.

    A round also continues without clients that send no reply, which is an error in other runs. The weights are computed again for the
    clients that have replied, whose replies are kept in memory until then. ``ctx.data.weight`` is a client's weight if nobody is late.

    Without a :class:`Clock`, a local step takes a second, and nothing else takes time. With several cutoffs a round ends at the
    earliest of their ends.
    """

    def asked(self, count: int) -> int:
        """The number of clients to select for a round that needs ``count`` clients. *Chain; plain Python.*"""
        return count

    @abstractmethod
    def close(self, finishes: Mapping[int, float], count: int) -> RoundEnd:
        """The end of the round, if this cutoff were the only one. *Plain Python.*

        Args:
            finishes: the seconds after which each client has finished, in random order; at least one client.
            count: the number of clients that ``trainer.clients_per_round`` asks for.
        """


@dataclass(frozen=True, kw_only=True)
class AsynchronousRounds(Method, protocol=True):
    """Takes the next arrivals as a round. Clients that still train continue with the model that they have received.

    The engine keeps the clients in flight and the broadcasts that they have received. A run has at most one such method, which acts in
    all rounds, on the simulated clock. Without a :class:`Clock`, a local step takes a second, and nothing else takes time.
    """

    @property
    def rate(self) -> float | None:
        """The number of clients that start in a simulated second; None if all free places are filled after each server step."""
        return None

    @abstractmethod
    def concurrent(self, count: int) -> int:
        """The largest number of clients in flight.

        Args:
            count: the number that ``trainer.clients_per_round`` asks for.
        """

    @abstractmethod
    def arrivals(self, count: int) -> int:
        """The number of arrivals of a round, with the arguments of :meth:`concurrent`."""

    @abstractmethod
    def discounts(self, staleness: Tensor) -> Tensor:
        """The weight of each arrival, float64, > 0. The engine divides it by the number of arrivals. *Plain Python.*

        Args:
            staleness: the number of server steps since the client started.
        """

    def check_clients(self, num_clients: int, count: int) -> None:
        """Refuse numbers that do not fit the number of clients. Called once, before round 1."""
        most, least = self.concurrent(count), self.arrivals(count)
        if most > num_clients:
            raise ValueError(
                f"{self.name}: concurrency must be at most the number of clients, {num_clients}; got {most}: lower it"
            )
        if least > most:
            raise ValueError(
                f"{self.name}: buffer must be at most concurrency, {most}; got {least}: lower it, or raise concurrency"
            )


class StepClock(Clock, protocol=True):
    """The clock of a run that needs one and has no other: a local step takes a second, and nothing else takes time."""

    def seconds(self, work: Work, seed: int) -> np.ndarray:
        return work.steps


def clock_of(methods: Sequence[Method]) -> Clock | None:
    """The clock of some methods; None if they need none."""
    default = StepClock() if any(isinstance(method, Cutoff | AsynchronousRounds) for method in methods) else None
    return next((method for method in methods if isinstance(method, Clock)), default)


def expected_cohort(methods: Sequence[Method], count: int) -> int:
    """The number of clients that train in a round that needs ``count`` clients."""
    for method in methods:
        if isinstance(method, AsynchronousRounds):
            return method.arrivals(count)
        count = method.asked(count) if isinstance(method, Cutoff) else count
    return count
