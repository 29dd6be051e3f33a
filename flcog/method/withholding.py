"""Withholding: a method that keeps columns out of the metrics, because they would tell more than it allows."""

from dataclasses import dataclass

from flcog.method.method import Method


@dataclass(frozen=True, kw_only=True)
class Withholding(Method, protocol=True):
    """Leaves columns out of the metrics."""

    def withholds(self, column: str) -> bool:
        """Whether a column depends on clients' data beyond the values that the method protects."""
        raise NotImplementedError
