"""Means over seeds with intervals, paired tests of two arms, and Holm's correction.

Intervals and tests are Student's t for any number of seeds, and there is no bootstrap. In simulations (2,000 draws for t, repeated in part
by tests/commands/test_compare_paired.py, and 1,000 for BCa) the 95 % interval by t contained the true mean of a normal distribution in 95 %
of draws at 3, 5 and 20 seeds, and the true difference of two skewed arms in 94 % at 20 seeds. The BCa bootstrap contained them in 70, 85
and 92 %, and in 91 %. With up to 100 seeds and five distributions, BCa was closer to 95 % in two of 35 cases, by 0.2 points. Neither
suits a single arm as skewed as the exponential at 20 seeds: t has 91 %, BCa 88 %. Arms are compared by differences, which are less skewed.
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
        mean: the mean, or NaN without seeds.
        half: half the interval's width. NaN for fewer than two seeds; 0 if all seeds have the same value.
        count: the number of seeds.
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
        """Whether the seeds differ. Equal seeds tell nothing about the spread."""
        return self.half > 0


@dataclass(frozen=True)
class Difference(Estimate):
    """The mean difference of two arms over the seeds that both have.

    Args:
        p: the p-value of Student's two-sided paired test. NaN for fewer than two seeds, or if every seed has the same difference; 1 if
            that difference is 0.
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
    """Half of Student's interval. A spread within the rounding errors of numbers of this ``size`` counts as none."""
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
    """Holm's adjusted p-values. All tests below a level together err no more often than that level. NaN stays, and is no test.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    tested = sorted((p, place) for place, p in enumerate(p_values) if not math.isnan(p))
    adjusted, least = list(p_values), 0.0
    for rank, (p, place) in enumerate(tested):
        least = max(least, min(1.0, p * (len(tested) - rank)))
        adjusted[place] = least
    return adjusted
