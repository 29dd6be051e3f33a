"""An aggregator: a rule that makes one model change of all clients' changes."""

from collections.abc import Sequence
from typing import Any, Protocol

from torch import Tensor


class Aggregator(Protocol):
    """Replaces the weighted mean of the clients' changes of parameters and buffers. A run has at most one.

    Values are trees of tensors, and states whatever the rule needs: sums, or all values in a list. Values are added in the order of the
    clients' tasks.
    """

    def init(self, like: Any) -> Any:
        """The state before the first client, given the shape of one client's values."""

    def add(self, state: Any, values: Any, weights: Tensor) -> Any:
        """The state with some more clients, whose values have a leading client axis, and whose weights are float64."""

    def merge(self, states: Sequence[Any]) -> Any:
        """One state for the clients of several processes, in the order of the processes."""

    def finish(self, state: Any) -> Any:
        """The value that the server takes, in the shape and type of one client's values."""
