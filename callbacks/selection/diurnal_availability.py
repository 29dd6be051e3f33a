"""DiurnalAvailability: clients are available for some hours of each day, most of them at night."""

from dataclasses import dataclass

import numpy as np
import torch

from flcog.core.checks import at_least, within
from flcog.core.randomness import fold, fold_each, uniform
from flcog.method import AvailabilityModel


@dataclass(frozen=True)
class DiurnalAvailability(AvailabilityModel):
    """Makes each client available in one window of the day, whose middle differs from client to client.

    ::

        client k is available at hour h if (h - middle_k + hours / 2) mod 24 < hours,   middle_k ~ N(night, spread^2)

    Phones take part while they charge on an unmetered network, mostly at night, so that the number of available clients rises and falls
    within a day. A client's window is a function of the seed and its number and needs no memory. The mean change is biased towards
    clients whose windows fall into the run's rounds. Eichner et al., Semi-Cyclic Stochastic Gradient Descent, ICML 2019,
    https://arxiv.org/abs/1904.10120.

    Args:
        hours: the length of the window, in (0, 24].
        night: the mean of the windows' middles, in hours after the start of the run, in [0, 24).
        spread: their standard deviation in hours, at least 0.
        seconds_per_round: the time from the start of a round to the start of the next one, > 0. With ``SystemModel``, its time counts.

    Example:
        >>> DiurnalAvailability(hours=24).available(np.array([3, 7]), seconds=3000, seed=0)
        array([ True,  True])
    """

    hours: float = 8.0
    night: float = 2.0
    spread: float = 3.0

    def __post_init__(self) -> None:
        super().__post_init__()
        within(self, "(0, 24]", "hours")
        within(self, "[0, 24)", "night")
        at_least(self, 0, "spread")

    def available(self, clients: np.ndarray, seconds: float, seed: int) -> np.ndarray:
        draws = uniform(fold_each(fold(seed, "availability"), clients))
        middles = self.night + self.spread * torch.special.ndtri(torch.from_numpy(draws)).clamp(-6, 6).numpy()
        hour = seconds / 3600
        present: np.ndarray = (hour - middles + self.hours / 2) % 24 < self.hours
        return present
