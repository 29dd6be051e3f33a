"""Clients as devices: which of them can take part at which time, and how many local steps they take."""

from dataclasses import dataclass

import numpy as np
import torch

from flcog.core.checks import positive_and_finite
from flcog.method.client_view import ClientView
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


@dataclass(frozen=True, kw_only=True)
class Workload(Method, protocol=True):
    """Changes the clients' numbers of local steps, for slow devices, for example. If a run has several, each gets the earlier one's."""

    def plan(self, num_steps: int, client: ClientView, rng: torch.Generator) -> int | None:
        """The client's number of local steps in this round, or None if it drops out. *Chain; plain Python.*"""
        return num_steps
