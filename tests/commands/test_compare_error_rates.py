"""Simulations of how often the rule of ``flcog compare`` accepts true and false replications."""

from pathlib import Path

import numpy as np
import pytest

from commands.test_compare import plan_file
from flcog.commands.compare.paired import estimate, paired_difference
from flcog.commands.compare.result_table import ResultTable
from flcog.commands.compare.results import Result
from flcog.commands.compare.table_file import read_table
from flcog.commands.compare.verdicts import CONTRADICTED, REPRODUCED, judge, verdicts

DRAWS = 4000
MARGIN = 2.0
"""Two deviations of a seed."""


def passes(count: int, off: float, mark: str, error: float = 1.0, margin: float = MARGIN) -> float:
    """The share of verdicts ``mark`` if the paper's arm is ``off`` deviations away and the paper's ± is ``error`` deviations."""
    rng = np.random.default_rng(count)
    found = 0
    for _ in range(DRAWS):
        ours, paper = rng.normal(0, 1, count), rng.normal(off, error)
        found += judge(estimate(list(ours), 0.95), 0.95, paper, error).mark(margin) == mark
    return found / DRAWS


@pytest.mark.slow
@pytest.mark.parametrize(("count", "share"), [(3, 0.10), (5, 0.15), (10, 0.21)])
def test_a_true_replication_rarely_passes_with_a_margin_of_two_deviations(count: int, share: float) -> None:
    assert passes(count, 0, REPRODUCED) == pytest.approx(share, abs=0.025)
    assert passes(count, 0, CONTRADICTED) < 0.01
    # With twice the margin, most true replications pass.
    assert passes(count, 0, REPRODUCED, margin=2 * MARGIN) > 0.5


@pytest.mark.slow
@pytest.mark.parametrize("count", [3, 5, 10])
def test_a_paper_two_deviations_off_passes_in_at_most_one_of_twenty(count: int) -> None:
    assert passes(count, 2, REPRODUCED) < 0.05


@pytest.mark.slow
def test_looking_at_each_seed_errs_in_one_of_six() -> None:
    """The gain is zero. If it is tested at 95 % after each of 3 to 10 seeds, some interval excludes 0 in 17 % of cases, the last in 5 %."""
    rng = np.random.default_rng(0)
    early = last = 0
    for gains in rng.normal(0, 1, (DRAWS, 10)):
        looks = [paired_difference(list(gains[:n]), [0.0] * n, 0.95) for n in range(3, 11)]
        early += any(look.low > 0 or look.high < 0 for look in looks)
        last += looks[-1].low > 0 or looks[-1].high < 0
    assert early / DRAWS == pytest.approx(0.17, abs=0.02) and last / DRAWS == pytest.approx(0.05, abs=0.012)


@pytest.mark.slow
@pytest.mark.parametrize("count", [3, 5, 10])
def test_a_gain_of_zero_is_rarely_reproduced(count: int) -> None:
    """The true gain is zero. The published gain is two deviations of the paired difference, and the margin is half of this gain."""
    rng = np.random.default_rng(count)
    found = 0
    for gains in rng.normal(0, 1, (DRAWS, count)):
        ours = paired_difference(list(gains), [0.0] * count, 0.95)
        found += judge(ours, 0.95, 2.0).mark(1.0) == REPRODUCED and not ours.low <= 0 <= ours.high
    assert found / DRAWS < 0.01


@pytest.mark.slow
@pytest.mark.parametrize("count", [2, 3, 5])
@pytest.mark.parametrize("budget", [80, 100, 120, 200])
def test_seeds_that_missed_the_target_rarely_contradict_a_paper_within_the_margin(
    count: int, budget: int, tmp_path: Path
) -> None:
    """The median is 75 rounds, just within the margin of 1.5 around the published 50, and a deviation of the logarithms is log 1.5."""
    rule = {"seeds": list(range(count)), "margin": {"rounds": 1.5}, "reason": "A test."}
    table = read_table(plan_file(tmp_path, rows={"A": None}, published={"A": {"": {"rounds": 50}}}, **rule))
    rng, found = np.random.default_rng(count), 0
    for draw in 75 * 1.5 ** rng.normal(0, 1, (DRAWS, count)):
        targets: list[dict[str, tuple[float, float]]] = [{"a": (rounds, 1)} if rounds <= budget else {} for rounds in draw]
        runs = [Result("A", "", seed, True, budget, None, {}, targets=one) for seed, one in enumerate(targets)]
        found += verdicts(ResultTable(table, runs))[0].mark == CONTRADICTED
    assert found / DRAWS < (0.05 if count == 2 else 0.035)
