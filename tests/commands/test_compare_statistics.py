"""Means, paired differences, Holm's correction and verdicts: closed forms, printed tables, and how often they err."""

import math

import numpy as np
import pytest
from scipy import stats

from flcog.commands.compare.statistics import estimate, holm, paired_difference
from flcog.commands.compare.verdicts import CONTRADICTED, REPRODUCED, gap, mark_of


@pytest.mark.parametrize(("count", "quantile"), [(2, 12.706), (3, 4.303), (5, 2.776), (20, 2.093)])
def test_intervals_are_those_of_the_t_table(count: int, quantile: float) -> None:
    """The values alternate between 1 and -1. The quantiles are from the printed t table for two-sided 95 %."""
    values = [(-1.0) ** place for place in range(count)]
    found = estimate(values)
    deviation = math.sqrt(sum((value - sum(values) / count) ** 2 for value in values) / (count - 1))
    assert found.half == pytest.approx(quantile * deviation / math.sqrt(count), rel=2e-4)
    assert (found.low + found.high) / 2 == pytest.approx(sum(values) / count) and found.count == count


def test_a_paired_test_by_hand() -> None:
    """The differences 1, 2, 3 have mean 2, deviation 1 and t = 2 sqrt(3). With two degrees of freedom, p = 1 - t / sqrt(t^2 + 2)."""
    found, t = paired_difference([11, 22, 33], [10, 20, 30]), 2 * math.sqrt(3)
    assert (found.mean, found.count) == (2, 3) and found.p == pytest.approx(1 - t / math.sqrt(t**2 + 2))
    assert found.half == pytest.approx(4.302653 / math.sqrt(3), rel=1e-6) and found.error == pytest.approx(1 / math.sqrt(3))


def test_p_and_interval_agree_with_scipy() -> None:
    rng = np.random.default_rng(0)
    ours, theirs = rng.normal(70, 3, 7), rng.normal(69, 3, 7)
    expected, found = stats.ttest_rel(ours, theirs), paired_difference(list(ours), list(theirs))
    interval = expected.confidence_interval()
    assert (found.p, found.low, found.high) == pytest.approx((expected.pvalue, interval.low, interval.high))


@pytest.mark.parametrize(
    ("ours", "theirs", "p"),
    [
        ([], [], math.nan),
        ([1.0], [2.0], math.nan),
        ([1.0, 2.0, 3.0], [1.0, 2.0, 3.0], 1.0),
        # Each value is larger by 0.1 up to rounding, so there is no spread for an interval.
        ([0.3, 0.4, 0.8], [0.2, 0.3, 0.7], math.nan),
    ],
)
def test_where_there_is_no_interval(ours: list[float], theirs: list[float], p: float) -> None:
    found = paired_difference(ours, theirs)
    assert not found.half > 0 and found.count == len(ours) and found.p == pytest.approx(p, nan_ok=True)


def test_holms_worked_example() -> None:
    """Holm (1979), step by step: 4 x 0.005, 3 x 0.01, 2 x 0.03; the result for 0.04 may not be smaller than this 0.06."""
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.6]) == [1.0, 1.0] and holm([]) == []
    # A comparison without a test does not count in the family.
    assert holm([math.nan, 0.02, 0.5])[1:] == pytest.approx([0.04, 0.5])


def test_a_verdicts_interval_is_welchs() -> None:
    """Our mean has the variance 1/3 with two degrees of freedom; the paper's mean has the known variance 0.25."""
    narrow, _ = gap(estimate([59.0, 60.0, 61.0]), 60.5, error=0.5)
    variance = 1 / 3 + 0.25
    half = stats.t.ppf(0.95, variance**2 / ((1 / 3) ** 2 / 2)) * math.sqrt(variance)
    assert narrow == pytest.approx((-0.5 - half, -0.5 + half))
    # If each seed draws its own split, the paper's result on one split varies as much as each of our seeds.
    _, wide = gap(estimate([59.0, 60.0, 61.0]), 60.0, over_splits=True)
    assert wide[1] == pytest.approx(stats.t.ppf(0.975, 2) * math.sqrt(1 / 3 + 1))


# Simulations --------------------------------------------------------------------------------------------------------------------------

LAWS = {
    "normal": (lambda rng, size: rng.normal(1.0, 2.0, size), (3, 5, 20)),
    # The difference of two skewed arms.
    "skewed": (lambda rng, size: 1.0 + rng.exponential(1.0, size) - rng.exponential(0.5, size), (20,)),
}
DRAWS = 4000
MARGIN = 2.0
"""Two deviations of a seed."""


@pytest.mark.parametrize(("law", "count"), [(law, count) for law, (_, counts) in LAWS.items() for count in counts])
def test_intervals_hold_the_truth_as_often_as_they_say(law: str, count: int) -> None:
    draw, truth = LAWS[law][0], {"normal": 1.0, "skewed": 1.5}[law]
    rng = np.random.default_rng(count)
    seeds = rng.normal(70, 5, (2000, count))  # the part that both arms share
    ours = seeds + draw(rng, (2000, count))
    found = [paired_difference(list(mine), list(other)) for mine, other in zip(ours, seeds, strict=True)]
    assert 0.93 <= np.mean([interval.low <= truth <= interval.high for interval in found]) <= 0.97


def passes(count: int, off: float, mark: str, error: float = 1.0, margin: float = MARGIN) -> float:
    """The share of verdicts ``mark`` if the paper's arm is ``off`` deviations away and the paper's ± is ``error`` deviations."""
    rng, found = np.random.default_rng(count), 0
    for _ in range(DRAWS):
        ours, paper = rng.normal(0, 1, count), rng.normal(off, error)
        found += mark_of(*gap(estimate(list(ours)), paper, error), margin) == mark
    return found / DRAWS


@pytest.mark.slow
@pytest.mark.parametrize(("count", "share"), [(3, 0.10), (5, 0.15), (10, 0.21)])
def test_a_true_replication_rarely_passes_with_a_margin_of_two_deviations(count: int, share: float) -> None:
    assert passes(count, 0, REPRODUCED) == pytest.approx(share, abs=0.025) and passes(count, 0, CONTRADICTED) < 0.01
    assert passes(count, 0, REPRODUCED, margin=2 * MARGIN) > 0.5, "with twice the margin, most true replications pass"
    assert passes(count, 2, REPRODUCED) < 0.05, "a paper two deviations off passes in at most one of twenty"
