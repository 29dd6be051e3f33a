"""Sealed sums: aggregators for which each client seals its own upload, so that the server reads only the sum over clients."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from flcog.method.aggregator import AggregationRule
from flcog.wire.packing import message

REFUSED = "refused"
"""The name of the measurement by which a client reports its largest number, if that is too large to send or not finite; else it is 0."""


@message
class RoundKeys(NamedTuple):
    """The secret and the clients of a round. Real clients would agree on keys in pairs; a simulation derives all of them from the secret.

    Args:
        secret: random hexadecimal digits, new in every round and attempt.
        clients: the clients with a task in the round.
    """

    secret: str
    clients: Sequence[int]


@dataclass(frozen=True, kw_only=True)
class SealedSum(AggregationRule, protocol=True):
    """Adds up uploads that clients have sealed. The engine lets each client multiply its values by its weight before ``seal``.

    Besides the model, buffers and messages, an upload contains the client's weight, its loss and the length of its change, so that the
    server learns only sums of these, too. Codecs and methods that read single uploads or losses are refused.
    """

    @property
    @abstractmethod
    def step(self) -> float:
        """The distance between two values that words can tell apart. ``seal`` rounds to multiples of it."""

    @abstractmethod
    def limit(self, num_clients: int) -> float:
        """The largest absolute value of a number that a client may send in a round with this number of clients."""

    @abstractmethod
    def seal(self, values: Tensor, client: int, keys: RoundKeys) -> Tensor:
        """A client's float64 values [n] as n whole numbers, which tell nothing without the other clients' numbers. *Plain Python.*"""

    @abstractmethod
    def finish(self, words: Tensor, clients: Sequence[int], keys: RoundKeys) -> Tensor:
        """The sum of the values of these clients, float64 [n], from the sum of their words. *Plain Python.*"""
