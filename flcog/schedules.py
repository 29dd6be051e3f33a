"""Schedules: values that change with the round, such as learning rates. A schedule maps the round (from 0) to a number."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field

from flcog.core.checks import at_least, within


class Schedule(ABC):
    """Maps a round, counted from 0, to a number."""

    @abstractmethod
    def __call__(self, round: int) -> float:
        """The number for a round."""


@dataclass(frozen=True)
class Exponential(Schedule):
    """``gamma ** round``, an exponential decay. FedExP and FedDC decay by 0.998 in each round.

    >>> Exponential(0.5)(2)
    0.25
    """

    gamma: float

    def __post_init__(self) -> None:
        within(self, "(0, 1]", "gamma")

    def __call__(self, round: int) -> float:
        return self.gamma**round


@dataclass(frozen=True)
class Piecewise(Schedule):
    """A step function: the first value before the first boundary, and the next value from each boundary on.

    >>> lr = Piecewise(values=[1.0, 0.1], boundaries=[100])
    >>> lr(99), lr(100)
    (1.0, 0.1)
    """

    values: list[float]
    boundaries: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        if len(self.values) != len(self.boundaries) + 1:
            raise ValueError(
                f"a piecewise schedule needs one more value than boundaries; got {len(self.values)} and {len(self.boundaries)}"
            )
        if sorted(set(self.boundaries)) != list(self.boundaries):
            raise ValueError(f"boundaries must be different rounds in rising order; got {self.boundaries}")

    def __call__(self, round: int) -> float:
        return self.values[sum(round >= boundary for boundary in self.boundaries)]


@dataclass(frozen=True)
class Cosine(Schedule):
    """A cosine decay from 1 at round 0 to ``floor`` at round ``rounds``, and ``floor`` afterwards.

    >>> Cosine(rounds=10)(5)
    0.5
    """

    rounds: int
    floor: float = 0.0

    def __post_init__(self) -> None:
        at_least(self, 1, "rounds")
        within(self, "[0, 1]", "floor")

    def __call__(self, round: int) -> float:
        progress = min(round / self.rounds, 1.0)
        value = self.floor + (1 - self.floor) * (1 + math.cos(math.pi * progress)) / 2
        return float(f"{value:.12g}")  # the last bits of a cosine differ between machines
