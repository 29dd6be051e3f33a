"""Aggregators replace the weighted mean of the clients' uploads, and changes of uploads act before them."""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from torch import Tensor

from flcog.core.precision import weighted_sum
from flcog.core.types import Slot
from flcog.method.cohort import Cohort
from flcog.method.method import Method


@dataclass(frozen=True, kw_only=True)
class AggregationRule(Method, protocol=True):
    """An :class:`Aggregator`, :class:`UploadAggregator` or :class:`SealedSum`, in place of the weighted mean. A run has at most one."""


@dataclass(frozen=True, kw_only=True)
class Aggregator(AggregationRule, protocol=True):
    """Combines the clients' changes of parameters and buffers into one change, some clients after others.

    Values are trees of tensors. The state is any value that the rule needs, such as a sum, or a list of all values. The engine adds
    clients in the order of their tasks.
    """

    @abstractmethod
    def init(self, like: Any) -> Any:
        """The state before the first client. ``like`` has the shape of one client's values."""

    @abstractmethod
    def add(self, state: Any, values: Any, weights: Tensor) -> Any:
        """The state after some more clients, whose values have a leading client axis, and whose weights are float64."""

    @abstractmethod
    def merge(self, states: Sequence[Any]) -> Any:
        """One state for the clients of all processes, whose states come in the order of the processes."""

    @abstractmethod
    def finish(self, state: Any) -> Any:
        """The combined change, in the shape and type of one client's values."""


class UploadMatrix(NamedTuple):
    """The uploads of a round as the rows of a matrix, in the order of the cohort.

    A row contains all floating-point numbers of an envelope: the changes of the parameters and of the shared buffers, and the messages
    of all methods. A tensor that appears twice in the envelope appears once.

    Args:
        values: [n, d].
        weights: of the rows in a mean, float64 [n]; they sum to 1.
        clients: the client of each row; empty after a row became the mean of several clients.
        num_params: the number of columns of the parameters' changes, which come first; None for all.
    """

    values: Tensor
    weights: Tensor
    clients: Sequence[int] = ()
    num_params: int | None = None

    def mean(self) -> Tensor:
        """The weighted mean of the rows, [d]."""
        return weighted_sum(self.weights.to(self.values.dtype), self.values)

    def norms(self) -> Tensor:
        """The norm of each client's change of the parameters alone, [n]."""
        return self.values[:, : self.num_params].norm(dim=1)


@dataclass(frozen=True, kw_only=True)
class UploadAggregator(AggregationRule, protocol=True):
    """Compares the uploads of a round: the engine keeps all of them, and calls ``combine`` once.

    Whole numbers in an envelope, such as BatchNorm's counters, do not belong to the matrix. Their median replaces their mean.
    """

    individual_uploads: ClassVar[bool] = True

    @property
    def least(self) -> int:
        """The smallest number of uploads that the rule can combine."""
        return 1

    @abstractmethod
    def combine(self, uploads: UploadMatrix, server: Slot) -> tuple[Tensor, Slot]:
        """The vector [d] that replaces the mean of the rows, and the method's new state at the server. *Exclusive; plain Python.*"""


@dataclass(frozen=True, kw_only=True)
class UploadChange(Method, protocol=True):
    """Changes the uploads of a round at the server, before they are combined: attackers that know all uploads, or a pre-aggregation.

    Attacks act first, and then the other methods in the order of the list.
    """

    individual_uploads: ClassVar[bool] = True

    @property
    def least(self) -> int:
        """The smallest number of uploads that the method can change."""
        return 1

    def rows_left(self, count: int) -> int:
        """The number of rows after the change of ``count`` rows."""
        return count

    @abstractmethod
    def change(
        self, uploads: UploadMatrix, server: Slot, cohort: Cohort, combine: Callable[[UploadMatrix], Tensor]
    ) -> tuple[UploadMatrix, Slot]:
        """The changed uploads, and the method's new state at the server. *Chain; plain Python.*

        Args:
            uploads: the uploads after earlier changes.
            server: the method's state at the server.
            cohort: the clients of the round.
            combine: the later changes and the aggregator as a function, for attackers that know them. It changes no state.
        """
