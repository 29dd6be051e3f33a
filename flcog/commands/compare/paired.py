"""What seeds say of an arm and of two arms' difference: means with intervals, paired tests, and Holm's correction.

Intervals and tests are Student's t at any number of seeds, and there is no bootstrap. In simulations (t in 2,000 draws, a part of which
is in tests/commands/test_compare_paired.py; BCa in 1,000) the 95 % interval by t held the true mean in 95 % of draws of a normal law at
3, 5 and 20 seeds, and in 94 % of the difference of two skewed arms at 20. The BCa bootstrap held it in 70, 85 and 92 %, and in 91 %.
Up to 100 seeds and under five laws it came closer to 95 % than t in two cases of 35, by 0.2 points. A single arm as skewed as the
exponential is too much for either at 20 seeds: 91 % by t, 88 % by BCa; arms are compared by differences, which are less skewed.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import special  # scipy.stats has the same functions, and takes many times as long to import


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds with its confidence interval.

    Args:
        mean: NaN where there is no seed.
        half: half the interval's width. NaN for fewer than two seeds; 0 where all seeds are alike.
        count: of seeds.
    """

    mean: float
    half: float
    count: int

    @property
    def low(self) -> float:
        return self.mean - self.half

    @property
    def high(self) -> float:
        return self.mean + self.half

    @property
    def has_interval(self) -> bool:
        """Whether the seeds differ, without which nothing is known of how far others would lie."""
        return self.half > 0


@dataclass(frozen=True)
class Difference(Estimate):
    """The mean difference of two arms over the seeds that both have.

    Args:
        p: of Student's paired test that there is none, two-sided. NaN where it cannot be told: fewer than two seeds, or a difference
            that is the same with every seed; 1 where that is 0.
    """

    p: float


def estimate(values: Sequence[float], confidence: float) -> Estimate:
    """The mean of ``values`` and Student's interval for it."""
    if not values:
        return Estimate(math.nan, math.nan, 0)
    return Estimate(float(np.mean(values)), _half(values, max(map(abs, values)), confidence), len(values))


def paired_difference(ours: Sequence[float], theirs: Sequence[float], confidence: float) -> Difference:
    """The mean of ``ours - theirs``, seed by seed."""
    differences = [mine - other for mine, other in zip(ours, theirs, strict=True)]
    if not differences:
        return Difference(math.nan, math.nan, 0, math.nan)
    size = max(map(abs, [*ours, *theirs]))
    mean, half, count = float(np.mean(differences)), _half(differences, size, confidence), len(differences)
    return Difference(mean, half, count, _p(differences) if half > 0 else 1.0 if half == 0 and mean == 0 else math.nan)


def _half(values: Sequence[float], size: float, confidence: float) -> float:
    """Half of Student's interval. A spread that is no more than rounding in numbers of this ``size`` is none."""
    if len(values) < 2:
        return math.nan
    error = _standard_error(values)
    return 0.0 if error <= 1e-12 * size else float(special.stdtrit(len(values) - 1, (1 + confidence) / 2)) * error


def _p(differences: Sequence[float]) -> float:
    statistic = float(np.mean(differences)) / _standard_error(differences)
    return float(2 * special.stdtr(len(differences) - 1, -abs(statistic)))


def _standard_error(values: Sequence[float]) -> float:
    return float(np.std(values, ddof=1)) / math.sqrt(len(values))


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's adjusted p-values: below a level, all of them together err no more often than that. NaN stays, and counts as no test.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    tested = sorted((p, place) for place, p in enumerate(p_values) if not math.isnan(p))
    adjusted, least = list(p_values), 0.0
    for rank, (p, place) in enumerate(tested):
        least = max(least, min(1.0, p * (len(tested) - rank)))
        adjusted[place] = least
    return adjusted
