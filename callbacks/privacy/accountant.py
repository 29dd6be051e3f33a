"""The privacy that training with Gaussian noise spends: epsilon after some rounds, and the noise that keeps to a target.

All bounds come from the package dp-accounting, which is imported on first use, because its import takes many seconds.
"""

import math
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from functools import lru_cache
from typing import Any, Literal

import numpy as np
from scipy import optimize

from flcog.core.checks import at_least, positive_and_finite, within
from flcog.core.extras import require
from flcog.core.output import quiet

Accountant = Literal["PLD", "RDP"]
"""Privacy loss distributions, whose bound is tight up to rounding, and Renyi differential privacy."""

TOLERANCE = 1e-3
"""The noise for a target is at most this share above the smallest noise that keeps to it."""

RANGE = (0.25, 1024.0)
"""The least and the largest noise multiplier for a target."""


@dataclass(frozen=True)
class Sampling:
    """The sampling of the clients of each round, which must be secret and independent of the other rounds.

    - Poisson: each client takes part with probability ``rate``, independently of the others. Both accountants apply.
    - Truncated Poisson: if more than ``at_most`` clients are drawn, a uniform choice of them takes part. Only PLD applies
      (Tighter Privacy Analysis for Truncated Poisson Sampling, 2025, https://arxiv.org/abs/2508.15089).
    - Fixed size: ``rate`` is the share of clients that take part, drawn without replacement. Only RDP applies (Wang et al., 2019,
      https://arxiv.org/abs/1808.00087), where data sets differ by the replacement of one client, which changes the sum by
      up to twice the bound of one client. The divergence is at most that of all clients in every round, with the same change.
    - Known: the server knows who takes part, so that sampling does not amplify privacy. Noise is a sum of discrete Gaussians, for which
      RDP applies: its divergences are those of Gaussian noise plus a term below 10^-1000 (Kairouz, Liu and Steinke, 2021, proposition 14,
      https://arxiv.org/abs/2102.06387).
    - A rate of 1: all clients take part in every round, and sampling does not amplify privacy. Both accountants apply.
    - Separated: two participations of a client are at least ``separation`` rounds apart, as with ``BandedNoise``. Sampling does not
      amplify privacy, and a client counts as often as it can take part, whatever the rate. Both accountants apply. Data sets differ by
      a client whose vectors are zeros in one of them, because without the client the others would take part in other rounds.

    Args:
        num_clients: the number of all clients, >= 1.
        rate: in (0, 1].
        at_most: the largest number of clients in a round of Poisson sampling, >= 1; None for no bound.
        fixed_size: whether the number of clients is the same in every round, a whole number near ``rate * num_clients``.
        known: whether the server knows who takes part, and reads sums with discrete noise.
        separation: the least distance in rounds between two participations of a client, >= 1; None if there is none.
    """

    num_clients: int
    rate: float
    at_most: int | None = None
    _: KW_ONLY
    fixed_size: bool = False
    known: bool = False
    separation: int | None = None

    def __post_init__(self) -> None:
        at_least(None, 1, num_clients=self.num_clients, at_most=self.at_most, separation=self.separation)
        within(None, "(0, 1]", rate=self.rate)
        if self.at_most is not None and (self.fixed_size or self.separation is not None):
            raise ValueError(
                f"at_most={self.at_most} bounds Poisson sampling alone: leave it out, or leave out fixed_size and separation"
            )

    @property
    def kind(self) -> Literal["all", "Poisson", "truncated Poisson", "fixed size", "known", "separated"]:
        """The analysis that applies."""
        if self.known:
            return "known"
        if self.separation is not None:
            return "separated"
        if not self.fixed_size and self.at_most is not None and self.at_most < self.num_clients:
            return "truncated Poisson"
        if self.rate == 1:
            return "all"
        return "fixed size" if self.fixed_size else "Poisson"

    @property
    def accountants(self) -> tuple[Accountant, ...]:
        """The accountants that support this sampling, the tighter one first.

        >>> Sampling(100, rate=0.1).accountants, Sampling(100, rate=0.1, fixed_size=True).accountants
        (('PLD', 'RDP'), ('RDP',))
        """
        supported: dict[str, tuple[Accountant, ...]] = {"truncated Poisson": ("PLD",), "fixed size": ("RDP",), "known": ("RDP",)}
        return supported.get(self.kind, ("PLD", "RDP"))

    @property
    def adjacency(self) -> str:
        """The change between two data sets that the guarantee hides."""
        data_or_none = "one client has its data or none"
        changes = {"fixed size": "one client is replaced", "known": data_or_none, "separated": data_or_none}
        return changes.get(self.kind, "one client is added or removed")

    def __str__(self) -> str:
        return {
            "known": "cohorts that the server knows, without amplification",
            "all": "all clients in every round, without amplification",
            "Poisson": f"Poisson sampling at rate {self.rate:g}",
            "truncated Poisson": f"Poisson sampling at rate {self.rate:g}, truncated at {self.at_most} clients",
            "fixed size": f"a fixed share {self.rate:g} of the clients, without replacement",
            "separated": f"a fixed share {self.rate:g} of the clients, each at most once in {self.separation} rounds: no amplification",
        }[self.kind]


def epsilons(
    sampling: Sampling, noise_multiplier: float, rounds: float, delta: float, accountants: Sequence[Accountant] = ("PLD", "RDP")
) -> dict[Accountant, float]:
    """Epsilon after some rounds by each accountant that supports the sampling; none without noise, which guarantees nothing.

    Each round releases the sum of its clients' vectors with Gaussian noise of ``noise_multiplier`` times the largest norm of one client's
    vector, and nothing else that depends on the clients' data or on the cohort.

    Args:
        sampling: of the clients of each round.
        noise_multiplier: the standard deviation of the noise over the largest norm of one client's vector, >= 0.
        rounds: >= 0.
        delta: in (0, 1 / num_clients).
        accountants: those that are asked, if they support the sampling.
    """
    check_delta(delta, sampling.num_clients)
    within(None, "[0, inf)", noise_multiplier=noise_multiplier)
    at_least(None, 0, rounds=rounds)
    if noise_multiplier == 0:
        return {}
    if (separation := sampling.separation) is not None:  # one Gaussian mechanism for each participation that a client can have
        sampling, rounds = Sampling(sampling.num_clients, 1.0), math.ceil(rounds / separation)
    bounds = {"PLD": _pld_epsilon, "RDP": _rdp_epsilon}
    with quiet("absl"):  # Renyi orders that are left out: epsilon is then valid, and perhaps not the smallest
        asked = [name for name in sampling.accountants if name in accountants]
        return {name: bounds[name](sampling, float(noise_multiplier), rounds, delta) if rounds else 0.0 for name in asked}


def epsilon(sampling: Sampling, noise_multiplier: float, rounds: float, delta: float) -> float:
    """Epsilon by the tighter accountant that supports the sampling; infinite without noise. See :func:`epsilons`."""
    return next(iter(epsilons(sampling, noise_multiplier, rounds, delta, sampling.accountants[:1]).values()), math.inf)


def noise_for(sampling: Sampling, target_epsilon: float, rounds: int, delta: float) -> float:
    """The smallest noise multiplier, up to ``TOLERANCE``, that keeps ``epsilon`` after these rounds at the target or below.

    Args:
        sampling, rounds, delta: as in :func:`epsilons`.
        target_epsilon: > 0.

    At least 0.25 is returned, because less noise gives an epsilon without meaning.
    """
    positive_and_finite(None, target_epsilon=target_epsilon)
    at_least(None, 1, rounds=rounds)

    def excess(log_noise: float) -> float:
        return math.log(max(epsilon(sampling, math.exp(log_noise), rounds, delta), 1e-12) / target_epsilon)

    high, least, most = 0.0, *map(math.log, RANGE)
    while excess(high) > 0 and high < most:
        high += math.log(2)
    if excess(high) > 0:
        raise ValueError(
            f"target_epsilon={target_epsilon:g} cannot be met in {rounds} rounds with {sampling} and delta={delta:g}: with a noise "
            f"multiplier of {RANGE[1]:g}, epsilon is {epsilon(sampling, RANGE[1], rounds, delta):.3g}; raise it, or train fewer rounds"
        )
    low = high - math.log(2)
    while excess(low) <= 0:
        if low <= least:
            return math.exp(low)
        low, high = low - math.log(2), low
    found = optimize.brentq(excess, low, high, xtol=TOLERANCE / 2) + TOLERANCE / 2  # brentq may err to either side
    return math.exp(found if excess(found) <= 0 else high)


def check_delta(delta: float, num_clients: int) -> None:
    """Refuse large values: a mechanism that publishes one client's data in full would count as private."""
    if not 0 < delta < 1 / num_clients:
        raise ValueError(
            f"delta must lie in (0, {1 / num_clients:g}), below 1 / clients; got {delta:g}: with a larger delta, publishing the data of "
            "one client chosen at random would count as private"
        )


@lru_cache(maxsize=4096)
def _pld_epsilon(sampling: Sampling, noise: float, rounds: float, delta: float) -> float:
    if sampling.kind == "all":  # the noise of several rounds composes to one Gaussian mechanism with less noise
        return float(_one_round(sampling, noise / math.sqrt(rounds)).get_epsilon_for_delta(delta))
    return float(_one_round(sampling, noise).self_compose(math.ceil(rounds)).get_epsilon_for_delta(delta))


@lru_cache(maxsize=8)
def _one_round(sampling: Sampling, noise: float) -> Any:
    """The privacy loss distribution of one round."""
    losses = require("dp_accounting.pld.privacy_loss_distribution", "the privacy accountant", "privacy")
    if sampling.kind == "truncated Poisson":
        return losses.from_truncated_subsampled_gaussian_mechanism(
            dataset_size=sampling.num_clients,
            sampling_probability=sampling.rate,
            truncated_batch_size=sampling.at_most,
            noise_multiplier=noise,
        )
    return losses.from_gaussian_mechanism(noise, sampling_prob=sampling.rate)


@lru_cache(maxsize=4096)
def _rdp_epsilon(sampling: Sampling, noise: float, rounds: float, delta: float) -> float:
    orders, divergences = _divergences(sampling, noise)
    rdp = require("dp_accounting.rdp", "the privacy accountant", "privacy")
    return float(rdp.compute_epsilon(orders, rounds * divergences, delta)[0])


@lru_cache(maxsize=8)
def _divergences(sampling: Sampling, noise: float) -> tuple[Any, Any]:
    """Renyi orders, and the divergences of one round at these orders. They add up over rounds."""
    dp = require("dp_accounting", "the privacy accountant", "privacy")
    rdp = require("dp_accounting.rdp", "the privacy accountant", "privacy")
    relation = dp.NeighboringRelation.ADD_OR_REMOVE_ONE
    event = dp.PoissonSampledDpEvent(1.0 if sampling.known else sampling.rate, dp.GaussianDpEvent(noise))
    if sampling.kind == "fixed size":
        # Replacing a client moves the sum by up to twice the bound, which halves the noise in units of the sensitivity.
        relation = dp.NeighboringRelation.REPLACE_ONE
        size = math.ceil(round(sampling.rate * sampling.num_clients, 6))  # rounded up, so that epsilon is no smaller
        event = dp.SampledWithoutReplacementDpEvent(sampling.num_clients, size, dp.GaussianDpEvent(noise / 2))
    accountant = rdp.RdpAccountant(neighboring_relation=relation).compose(event)
    if sampling.kind != "fixed size":
        return accountant.orders, accountant.rdp
    # Divergences are quasi-convex, so that no sampling costs more than all clients in every round. The bound with sampling can.
    return accountant.orders, np.fmin(accountant.rdp, 2 * np.asarray(accountant.orders) / noise**2)
