"""Availability: a method that knows which clients can take part at which time."""

from dataclasses import dataclass

import numpy as np

from flcog.method.method import Method


@dataclass(frozen=True, kw_only=True)
class AvailabilityModel(Method, protocol=True):
    """Tells which clients are available in a round. A run has at most one active model; without it, all clients are available.

    Every selection asks it, and so does the uniform selection of a run without one.
    """

    def check_clients(self, num_clients: int) -> None:
        """Refuse data that do not fit the number of clients. Called once, before round 1."""

    def available(self, clients: np.ndarray, round: int, seed: int) -> np.ndarray:
        """Whether each of some clients is available, bool [clients]. *Exclusive; plain Python.*

        The time must depend on the number of these clients, and not on the number of all clients.

        Args:
            clients: their numbers, int64.
            round: counted from 0.
            seed: the run's seed, a key for random numbers.
        """
        raise NotImplementedError
