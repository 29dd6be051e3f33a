"""PoissonSampling: every client takes part independently of all others, so that cohorts vary in size and may be empty."""

from dataclasses import dataclass
from math import ceil, sqrt

import numpy as np
import torch

from flcog.core.checks import option
from flcog.core.types import Slot
from flcog.method import ClientPool, Participants, SamplingLaw, Selection, Unbiased


@dataclass(frozen=True)
class PoissonSampling(Selection):
    """Lets each client take part in a round with the same probability, independently of all other clients and rounds.

    ::

        S = {k : u_k < rate},   u_k ~ uniform[0, 1),   w_k = (n_k / n) / rate    if unbiased

    The number of clients varies from round to round. A round without clients leaves the model unchanged. If an availability model acts,
    clients that are drawn while they are not available stay away, and unbiased weights estimate the available clients' part of the
    mean. The analyses of differential privacy assume this sampling: list it beside ``DPFedAvg``. Abadi et al., Deep
    Learning with Differential Privacy, CCS 2016, https://arxiv.org/abs/1607.00133; McMahan et al., Learning Differentially Private
    Recurrent Language Models, ICLR 2018, https://arxiv.org/abs/1710.06963.

    Args:
        rate: the probability, in (0, 1]. None takes the share of ``trainer.clients_per_round`` in all clients, whose number is then the
            expected number of clients in a round.
        at_most: the largest number of clients in a round, which bounds its time and memory; None for no bound. If more are drawn, a
            uniform choice of them takes part.
        unbiased: whether weights are divided by inclusion probabilities: ``true`` for the mean over all samples, ``clients`` for the
            mean over all clients, each of which counts the same.

    Example:
        >>> PoissonSampling(rate=0.1).expected(count=1, num_clients=50)
        5
    """

    rate: float | None = option(None, "(0, 1]")
    at_most: int | None = option(None, ">= 1")
    unbiased: Unbiased = False

    def select(self, state: Slot, population: ClientPool, count: int, rng: torch.Generator) -> Participants:
        num_clients = population.num_clients
        rate = self._rate(count, num_clients)
        drawn = bernoulli(num_clients, rate, rng)
        drawn = drawn[population.available(drawn)]
        probability: float | None = rate
        if self.at_most is not None:
            known = population.availability is None
            probability = expected_minimum(num_clients, rate, self.at_most) / num_clients if known else None
            if len(drawn) > self.at_most:
                kept = torch.randperm(len(drawn), generator=rng)[: self.at_most]
                drawn = drawn[np.sort(kept.numpy())]
        return population.weighted(self.unbiased, drawn.tolist(), probability)

    def law(self, count: int, num_clients: int) -> SamplingLaw:
        return SamplingLaw(self._rate(count, num_clients), self.at_most)

    def expected(self, count: int, num_clients: int) -> int:
        # Products such as 0.07 * 100 lie above the whole number by rounding.
        expected = max(1, ceil(round(self._rate(count, num_clients) * num_clients, 9)))
        return expected if self.at_most is None else min(expected, self.at_most)

    def _rate(self, count: int, num_clients: int) -> float:
        return min(1.0, count / num_clients) if self.rate is None else self.rate


def bernoulli(num_clients: int, rate: float, rng: torch.Generator) -> np.ndarray:
    """Numbers below ``num_clients``, each contained with the same probability, independently of all others, in order.

    The gaps between them are geometric, so that time and memory depend on the result's length alone.
    """
    if rate >= 1:
        return np.arange(num_clients)
    expected = num_clients * rate
    parts, last, block = [np.empty(0, np.int64)], -1, int(expected + 4 * sqrt(expected)) + 8
    while last < num_clients:
        uniform = torch.rand(block, generator=rng, dtype=torch.float64).numpy()
        gaps = np.floor(np.log1p(-uniform) / np.log1p(-rate)).clip(max=num_clients).astype(np.int64)
        parts.append(last + np.cumsum(gaps + 1))
        last = int(parts[-1][-1])
    numbers = np.concatenate(parts)
    return numbers[numbers < num_clients]


def expected_minimum(num_clients: int, rate: float, most: int) -> float:
    """The mean of min(X, most), where X is binomial: the number of clients that are drawn.

    >>> expected_minimum(2, 0.5, 1)  # X is 0, 1 or 2 with probability 1/4, 1/2 and 1/4
    0.75
    """
    if most >= num_clients or rate >= 1:
        return min(num_clients * rate, float(most))
    count = torch.arange(most, dtype=torch.float64)
    n = torch.tensor(float(num_clients), dtype=torch.float64)
    chosen = torch.lgamma(n + 1) - torch.lgamma(count + 1) - torch.lgamma(n - count + 1)
    log_probability = chosen + count * np.log(rate) + (n - count) * np.log1p(-rate)
    return float(most - ((most - count) * log_probability.exp()).sum())
