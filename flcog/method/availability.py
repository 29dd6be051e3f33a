"""Availability: a method that knows which clients can take part at which time."""

from dataclasses import dataclass

import numpy as np

from flcog.core.checks import positive_and_finite
from flcog.method.method import Method


@dataclass(frozen=True, kw_only=True)
class AvailabilityModel(Method, protocol=True):
    """Tells which clients are available at a time. A run has at most one active model; without it, all clients are available.

    Every selection asks it, and so does the uniform selection of a run without one.

    Args:
        seconds_per_round: the time from the start of a round to the start of the next one, > 0, in runs without a clock,
            and the length of a round without clients in runs with one.
    """

    seconds_per_round: float = 600.0

    def __post_init__(self) -> None:
        super().__post_init__()
        positive_and_finite(self, "seconds_per_round")

    def check_clients(self, num_clients: int) -> None:
        """Refuse data that do not fit the number of clients. Called once, before round 1."""

    def available(self, clients: np.ndarray, seconds: float, seed: int) -> np.ndarray:
        """Whether each of some clients is available, bool [clients]. *Exclusive; plain Python.*

        The time must depend on the number of these clients, and not on the number of all clients.

        Args:
            clients: their numbers, int64.
            seconds: the time since the start of the run.
            seed: the run's seed, a key for random numbers.
        """
        raise NotImplementedError
