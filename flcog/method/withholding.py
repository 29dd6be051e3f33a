"""Withholding: a method that keeps columns out of the metrics, because they would tell more than it allows."""

from dataclasses import dataclass

from flcog.method.method import Method


@dataclass(frozen=True, kw_only=True)
class Withholding(Method, protocol=True):
    """Leaves columns out of the metrics, and acts in all rounds."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.start_round or self.stop_round is not None:
            raise ValueError(
                f"{self.name} acts in all rounds, because a round without it would protect nothing; got start_round={self.start_round} "
                f"and stop_round={self.stop_round}: remove them"
            )

    def withholds(self, column: str) -> bool:
        """Whether a column depends on clients' data beyond the values that the method protects."""
        raise NotImplementedError
