"""Asynchronous rounds: a round consists of the next arrivals, while other clients continue to train."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from flcog.method.method import Method


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

    def concurrent(self, count: int) -> int:
        """The largest number of clients in flight.

        Args:
            count: the number that ``trainer.clients_per_round`` asks for.
        """
        raise NotImplementedError

    def arrivals(self, count: int) -> int:
        """The number of arrivals of a round, with the arguments of :meth:`concurrent`."""
        raise NotImplementedError

    def discounts(self, staleness: Tensor) -> Tensor:
        """The weight of each arrival, float64, > 0. The engine divides it by the number of arrivals. *Plain Python.*

        Args:
            staleness: the number of server steps since the client started.
        """
        raise NotImplementedError

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


def asynchronous_of(methods: Sequence[Method]) -> AsynchronousRounds | None:
    """The method with asynchronous rounds among some methods, if there is one."""
    return next((method for method in methods if isinstance(method, AsynchronousRounds)), None)
