"""Availability and DiurnalAvailability: who can be selected, by a file or by the hour of the day."""

from dataclasses import dataclass

import numpy as np
import torch

from flcog.callbacks.parts.client_rows import client_rows
from flcog.core.checks import option
from flcog.core.randomness import fold, fold_each, uniform
from flcog.method import AvailabilityModel

HEADER = "client,from,until"


@dataclass(frozen=True)
class Availability(AvailabilityModel):
    """Selects only clients that are available according to a CSV file.

    ::

        client k is available at t if a row (k, from, until) has from <= t mod period < until

    The file has the header ``client,from,until`` and rows with a client's number and the begin and end of an interval, in seconds after
    the start of the run. Each client needs a row. The file takes 24 bytes of memory for each row.
    The mean change is biased towards clients that are available often. Lai et al., FedScale: Benchmarking Model and System Performance
    of Federated Learning at Scale, ICML 2022, https://arxiv.org/abs/2105.11367, also repeat their traces after their last moment.

    Args:
        trace: the path of the file. None makes all clients available at all times.
        seconds_per_round: the time from the start of a round to the start of the next one, > 0. With ``SystemModel``, t is its time.
        period: the trace is repeated after this number of seconds, > 0; later rows have no effect. None takes the last ``until``
            of the file.

    Example:
        >>> Availability().available(np.array([3, 7]), seconds=0, seed=0)
        array([ True,  True])
    """

    trace: str | None = None
    period: float | None = option(None, "(0, inf)")

    def check_clients(self, num_clients: int) -> None:
        if self.trace and not np.array_equal(np.unique(client_rows(self.trace, HEADER)[:, 0]), np.arange(num_clients)):
            raise ValueError(f"{self.trace} must have an interval of each of the {num_clients} clients, and of no other client")

    def available(self, clients: np.ndarray, seconds: float, seed: int) -> np.ndarray:
        if self.trace is None:
            return np.ones(len(clients), bool)
        known, begins, ends = client_rows(self.trace, HEADER).T
        moment = seconds % (ends.max() if self.period is None else self.period)
        first, after = (np.searchsorted(known, clients, side) for side in ("left", "right"))
        present = np.zeros(len(clients), bool)
        for row in range(int((after - first).max(initial=0))):
            at = np.minimum(first + row, after - 1)
            present |= (begins[at] <= moment) & (moment < ends[at])
        return present


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

    hours: float = option(8.0, "(0, 24]")
    night: float = option(2.0, "[0, 24)")
    spread: float = option(3.0, ">= 0")

    def available(self, clients: np.ndarray, seconds: float, seed: int) -> np.ndarray:
        draws = uniform(fold_each(fold(seed, "availability"), clients))
        middles = self.night + self.spread * torch.special.ndtri(torch.from_numpy(draws)).clamp(-6, 6).numpy()
        hour = seconds / 3600
        present: np.ndarray = (hour - middles + self.hours / 2) % 24 < self.hours
        return present
