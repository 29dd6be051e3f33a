"""Means, paired differences and Holm's correction: closed forms, known tables, and how often an interval contains the true value."""

import math

import numpy as np
import pytest
from scipy import stats

from flcog.commands.compare.paired import estimate, holm, paired_difference


@pytest.mark.parametrize(("count", "quantile"), [(2, 12.706), (3, 4.303), (5, 2.776), (20, 2.093)])
def test_intervals_are_those_of_the_t_table(count: int, quantile: float) -> None:
    """The values alternate between 1 and -1. The quantiles are from the printed t table for two-sided 95 %."""
    values = [(-1.0) ** place for place in range(count)]
    found = estimate(values, 0.95)
    deviation = math.sqrt(sum((value - sum(values) / count) ** 2 for value in values) / (count - 1))
    assert found.half == pytest.approx(quantile * deviation / math.sqrt(count), rel=2e-4)
    assert (found.low + found.high) / 2 == pytest.approx(sum(values) / count) and found.count == count


def test_a_paired_test_by_hand() -> None:
    """The differences 1, 2, 3 have mean 2, deviation 1 and t = 2 sqrt(3). With two degrees of freedom, p = 1 - t / sqrt(t^2 + 2)."""
    found = paired_difference([11, 22, 33], [10, 20, 30], 0.95)
    t = 2 * math.sqrt(3)
    assert (found.mean, found.count) == (2, 3)
    assert found.p == pytest.approx(1 - t / math.sqrt(t**2 + 2))
    assert found.half == pytest.approx(4.302653 / math.sqrt(3), rel=1e-6)


def test_p_and_interval_agree_with_scipy() -> None:
    rng = np.random.default_rng(0)
    ours, theirs = rng.normal(70, 3, 7), rng.normal(69, 3, 7)
    expected = stats.ttest_rel(ours, theirs)
    found = paired_difference(list(ours), list(theirs), 0.9)
    assert found.p == pytest.approx(expected.pvalue)
    interval = expected.confidence_interval(0.9)
    assert (found.low, found.high) == (pytest.approx(interval.low), pytest.approx(interval.high))


def test_pairing_is_by_seed() -> None:
    """Scores differ much between seeds, and little but consistently between arms: only a test that is paired by seed finds this."""
    theirs = [50.0, 60.0, 70.0]
    found = paired_difference([51.0, 61.1, 70.9], theirs, 0.95)
    assert found.low > 0 and found.p < 0.01
    assert paired_difference([51.0, 70.9, 61.1], theirs, 0.95).p > 0.5


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
    found = paired_difference(ours, theirs, 0.95)
    assert not found.has_interval and found.count == len(ours)
    assert found.p == pytest.approx(p, nan_ok=True)


def test_alike_seeds_have_a_mean() -> None:
    assert estimate([3.0, 3.0], 0.95).half == 0 and math.isnan(estimate([3.0], 0.95).half)
    assert math.isnan(estimate([], 0.95).mean)


def test_holms_worked_example() -> None:
    """Holm (1979), step by step: 4 x 0.005, 3 x 0.01, 2 x 0.03; the result for 0.04 may not be smaller than this 0.06."""
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.6]) == [1.0, 1.0] and holm([]) == []
    # A comparison without a test does not count in the family.
    assert holm([math.nan, 0.02, 0.5])[1:] == pytest.approx([0.04, 0.5])


LAWS = {
    "normal": (lambda rng, size: rng.normal(1.0, 2.0, size), (3, 5, 20)),
    # The difference of two skewed arms.
    "skewed": (lambda rng, size: 1.0 + rng.exponential(1.0, size) - rng.exponential(0.5, size), (20,)),
}


@pytest.mark.parametrize(("law", "count"), [(law, count) for law, (_, counts) in LAWS.items() for count in counts])
def test_intervals_hold_the_truth_as_often_as_they_say(law: str, count: int) -> None:
    draw, truth = LAWS[law][0], {"normal": 1.0, "skewed": 1.5}[law]
    rng = np.random.default_rng(count)
    seeds = rng.normal(70, 5, (2000, count))  # the part that both arms share
    ours = seeds + draw(rng, (2000, count))
    found = [paired_difference(list(mine), list(other), 0.95) for mine, other in zip(ours, seeds, strict=True)]
    share = np.mean([interval.low <= truth <= interval.high for interval in found])
    assert 0.93 <= share <= 0.97, share
    # Conversely, 80 % intervals contain the true value less often.
    narrow = [estimate(list(mine - other), 0.8) for mine, other in zip(ours, seeds, strict=True)]
    assert np.mean([interval.low <= truth <= interval.high for interval in narrow]) < 0.85
