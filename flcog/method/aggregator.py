"""An aggregator: a method that replaces the weighted mean of the clients' changes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from flcog.method.method import Method


@dataclass(frozen=True, kw_only=True)
class Aggregator(Method, protocol=True):
    """Combines the clients' changes of parameters and buffers into one change. A run has at most one aggregator.

    Values are trees of tensors. The state is any value that the rule needs, such as a sum, or a list of all values. The engine adds
    clients in the order of their tasks.
    """

    def init(self, like: Any) -> Any:
        """The state before the first client. ``like`` has the shape of one client's values."""
        raise NotImplementedError

    def add(self, state: Any, values: Any, weights: Tensor) -> Any:
        """The state after some more clients, whose values have a leading client axis, and whose weights are float64."""
        raise NotImplementedError

    def merge(self, states: Sequence[Any]) -> Any:
        """One state for the clients of all processes, whose states come in the order of the processes."""
        raise NotImplementedError

    def finish(self, state: Any) -> Any:
        """The combined change, in the shape and type of one client's values."""
        raise NotImplementedError
