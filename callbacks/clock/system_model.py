"""SystemModel: clients differ in the speed of their computers and networks, and rounds take simulated time."""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

from flcog.callbacks.parts.client_rows import client_rows
from flcog.core.checks import option
from flcog.core.randomness import fold, fold_each, uniform
from flcog.method import Clock, Work

HEADER = "client,seconds_per_step,download,upload"


@dataclass(frozen=True)
class SystemModel(Clock):
    """Gives each client a speed, and counts the simulated time of the rounds. The model and its training stay the same.

    ::

        t_k = f_1 s K_k + f_2 (bytes down) / download + f_3 (bytes up) / upload
        f = 1  (fixed),   exp(sigma z)  (log-normal),   |z|  (half-normal),   z ~ N(0, 1)

    K_k are the client's local steps, and the bytes are those of ``comm/*``. The factors f differ between clients and between the three
    terms, and stay the same in all rounds; they are functions of the seed and the client's number and need no memory. A round ends when
    its last client has finished, or at a cutoff such as ``Deadline``. Other work than local steps takes no time: the server's step,
    the exchange of data before round 1, first-contact messages, and FedCOG's generation of samples.

    Columns: ``time/simulated``, the seconds from the start of the run to the end of the round; ``time/waiting``, the mean time that
    clients waited for the end of the round; ``time/idle_share``, the share of all clients' time that they waited.

    Lai et al., FedScale: Benchmarking Model and System Performance of Federated Learning at Scale, ICML 2022,
    https://arxiv.org/abs/2105.11367, count rounds in the same way. Half-normal times fit the devices of Nguyen et al., Federated
    Learning with Buffered Asynchronous Aggregation, AISTATS 2022, https://arxiv.org/abs/2106.06639.

    Args:
        seconds_per_step: s, >= 0; the median of log-normal speeds.
        download: bytes per second, > 0. None makes downloads take no time.
        upload: bytes per second, > 0. None makes uploads take no time.
        spread: how clients differ: ``fixed``, ``log-normal`` or ``half-normal``.
        sigma: the standard deviation of the logarithm of log-normal factors, >= 0.
        clients: the path of a CSV file with the header ``client,seconds_per_step,download,upload`` and a row for each client, whose
            values take the place of the three arguments. They need 32 bytes of memory for each client. None reads no file.

    Example:
        >>> work = Work(np.array([3]), steps=np.array([10.0]), down=np.array([2e6]), up=np.array([1e6]))
        >>> SystemModel(seconds_per_step=0.5, download=1e6, upload=1e6).seconds(work, seed=0)
        array([8.])
    """

    seconds_per_step: float = option(0.1, ">= 0")
    download: float | None = option(2.5e6, "(0, inf)")
    upload: float | None = option(1.25e6, "(0, inf)")
    spread: Literal["fixed", "log-normal", "half-normal"] = "fixed"
    sigma: float = option(1.0, ">= 0")
    clients: str | None = None

    def check_clients(self, num_clients: int) -> None:
        if self.clients is None:
            return
        numbers, seconds, *speeds = client_rows(self.clients, HEADER).T
        if not (np.array_equal(numbers, np.arange(num_clients)) and (seconds >= 0).all() and np.min(speeds) > 0):
            raise ValueError(
                f"{self.clients} must have one row for each of the {num_clients} clients, with seconds of at least 0 and two "
                "bandwidths above 0"
            )

    def seconds(self, work: Work, seed: int) -> np.ndarray:
        step, down, up = (
            np.float64(value) for value in (self.seconds_per_step, self.download or math.inf, self.upload or math.inf)
        )
        if self.clients is not None:
            step, down, up = client_rows(self.clients, HEADER)[work.clients, 1:].astype(np.float32).astype(np.float64).T
        terms = (step * work.steps, work.down / down, work.up / up)
        factors = [self._factors(name, work.clients, seed) for name in ("step", "down", "up")]
        return np.sum([factor * term for factor, term in zip(factors, terms, strict=True)], axis=0)  # type: ignore[no-any-return]

    def _factors(self, name: str, clients: np.ndarray, seed: int) -> np.ndarray:
        """The factors of clients in one of the three terms."""
        if self.spread == "fixed":
            return np.ones(len(clients))
        draws = uniform(fold_each(fold(seed, "clock", name), clients)) + 2.0**-54
        z = torch.special.ndtri(torch.from_numpy(draws)).numpy()
        return np.abs(z) if self.spread == "half-normal" else np.exp(self.sigma * z)
