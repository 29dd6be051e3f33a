"""The report of ``flcog compare`` on arms and papers, and the files that it writes."""

import csv
import itertools
import math
import re
import shutil
import statistics
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args
from unittest import mock

import numpy as np
import pytest
from scipy import stats

from commands.test_compare import TABLES, fake_run, filled, plan_file
from flcog.commands.cli import main
from flcog.commands.compare.curves import curves_figure, draw_curves, over_seeds
from flcog.commands.compare.facts import Facts
from flcog.commands.compare.findings import difference_table, paper_table
from flcog.commands.compare.latex import escape, latex
from flcog.commands.compare.megabytes import draw_megabytes
from flcog.commands.compare.notes import notes
from flcog.commands.compare.paired import estimate
from flcog.commands.compare.plan import Summary, Table, cells, select, with_against
from flcog.commands.compare.published import Figure
from flcog.commands.compare.report import text
from flcog.commands.compare.result_table import ResultTable
from flcog.commands.compare.results import Result
from flcog.commands.compare.saved_results import results_of
from flcog.commands.compare.table import summarise
from flcog.commands.compare.table_csv import write_csv
from flcog.commands.compare.table_file import read_table, with_bounds
from flcog.commands.compare.verdicts import judge, verdicts

A, B, C = [0.50, 0.60, 0.70], [0.52, 0.63, 0.71], [0.40, 0.40, 0.40]


def fill(folder: Path, scores: dict[str, list[float]], **content: Any) -> ResultTable:
    """A table with a row for each name and its seeds' scores; NaN marks a seed that has not finished."""
    plan = read_table(plan_file(folder, rows=dict.fromkeys(scores), **{"seeds": [0, 1, 2]} | content))
    return ResultTable(
        plan,
        [
            Result(row, column, seed, not math.isnan(score), 9, "test/accuracy", {} if math.isnan(score) else {"best": score})
            for column in plan.columns
            for row, values in scores.items()
            for seed, score in enumerate(values)
        ],
    )


def lines(table: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines() if not line.startswith("|---")]


def test_differences_are_paired_with_the_first_row(tmp_path: Path) -> None:
    header, b, c = lines(difference_table(fill(tmp_path, {"A": A, "B": B, "C": C})))
    assert header == ["", "against", "seeds", "difference", "95 % interval", "p", "p (Holm)"]
    expected = [stats.ttest_rel(arm, A) for arm in (B, C)]
    interval = expected[0].confidence_interval()
    assert b[:4] == ["B", "A", "3", "+2.00"] and b[4] == f"{100 * interval.low:.2f} to {100 * interval.high:.2f}"
    assert [float(row[5]) for row in (b, c)] == [pytest.approx(found.pvalue, abs=5e-4) for found in expected]
    # Holm's correction of two tests doubles the smaller p-value, and the larger one becomes at least as large as this.
    smaller = 2 * min(found.pvalue for found in expected)
    assert [float(row[6]) for row in (b, c)] == [pytest.approx(max(smaller, found.pvalue), abs=5e-4) for found in expected]


def test_pairs_are_of_seeds_that_both_have(tmp_path: Path) -> None:
    _, b = lines(difference_table(fill(tmp_path, {"A": [0.5, math.nan, 0.7], "B": B}, against="A")))
    assert b[:4] == ["B", "A", "2", "+1.50"]
    _, b = lines(difference_table(fill(tmp_path, {"A": [0.5], "B": [math.nan, 0.6]})) or "|||\n|||")
    assert b == [""]


@pytest.mark.parametrize(
    ("a", "b", "difference", "said"),
    [
        ([0.5], [0.6], "+10.00", ["one seed: no interval"]),
        (A, A, "+0.00", ["the same with all 3 seeds: no interval", "1.000", "1.000"]),
        ([0.5, 0.6], [0.625, 0.725], "+12.50", ["the same with all 2 seeds: no interval"]),
    ],
)
def test_what_has_no_interval_is_said_in_words(
    a: list[float], b: list[float], difference: str, said: list[str], tmp_path: Path
) -> None:
    _, row = lines(difference_table(fill(tmp_path, {"A": a, "B": b})))
    assert row == ["B", "A", str(len(a)), difference, *said]


def test_one_seed_is_said_to_have_no_test(tmp_path: Path) -> None:
    (tmp_path / "two").mkdir()
    one, two = (
        " ".join(notes(fill(folder, {"A": a, "B": a}), "std")) for folder, a in ((tmp_path, [0.5]), (tmp_path / "two", A))
    )
    assert "best evaluation of one seed, which allows neither an interval nor a test." in one and "Student" not in one
    assert "Student's 95 % interval" in two and "one seed" not in two


@pytest.mark.parametrize(("scores", "vary", "said"), [(A, ["seed"], 1), (A, ["seed", "partition_seed"], 0), ([0.5], ["seed"], 0)])
def test_one_split_for_all_seeds_is_said(scores: list[float], vary: list[str], said: int, tmp_path: Path) -> None:
    found = notes(fill(tmp_path, {"A": scores, "B": scores}, vary=vary), "std")
    assert sum("All seeds share one split of the data" in note for note in found) == said


def test_each_row_has_its_own_partner(tmp_path: Path) -> None:
    given = fill(tmp_path, {"A": A, "B": B, "A+": B, "B+": A}, against={"A+": "A", "B+": "B"})
    assert {row: found.against for row, found in given.comparisons("").items()} == {"B": "A", "A+": "A", "B+": "B"}
    assert given.comparisons("")["B+"].difference.mean == pytest.approx(-2)


@pytest.mark.slow
def test_options_choose_partner_confidence_and_spread(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    figures = {"B": {"": {"gain": 1}}}
    path, out = (
        plan_file(tmp_path, rows={"A": None, "B": None, "C": None}, seeds=[0, 1, 2], published=figures),
        str(tmp_path / "out"),
    )
    for cell in cells(read_table(path), tmp_path / "out", []):
        fake_run(cell, [(A if cell.row == "A" else B)[cell.seed]], finished=True)
    command = ["compare", str(path), "--out", out, "--show"]
    main([*command, "--against", "B", "--confidence", "0.8", "--spread", "sem"])
    shown = capsys.readouterr().out
    assert (
        "| A | B | 3 | -2.00 |" in shown
        and "80 % interval" in shown
        and "published gain" not in shown
        and "± is the standard error" in shown
    )
    assert f"| A | 60.00 ± {10 / math.sqrt(3):.2f} |" in shown
    main([*command, "--spread", "interval"])
    shown = capsys.readouterr().out
    assert "published gain" in shown and f"| A | 60.00 ± {4.30265 * 10 / math.sqrt(3):.2f} |" in shown
    for wrong, message in (
        (["--against", "D"], "--against D: the table has the rows A, B, C"),
        (["--confidence", "95"], "between 0 and 1"),
    ):
        with pytest.raises(SystemExit):
            main([*command, *wrong])
        assert message in capsys.readouterr().err
    assert {path.name for path in Path(out).iterdir() if path.is_file()} == {
        *("table.md", "table.tex", "table.csv", "curves.png", "curves.pdf")
    }


def test_no_option_changes_the_mean_that_a_verdict_compares(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = plan_file(tmp_path, published={"A": {"": 60}}, summary="mean")
    command = ["compare", str(path), "--out", str(tmp_path / "out"), "--show", "--last"]
    with pytest.raises(SystemExit):
        main([*command, "9"])
    assert "compared with the paper by the mean of the last 5 evaluations; got --last 9" in capsys.readouterr().err
    main([*command, "5"])
    plan_file(tmp_path, published={"A": {"": 60}}, summary="best")
    main([*command, "9"])
    assert "mean of last 9" in capsys.readouterr().out


RULE: dict[str, Any] = {"reason": "A test."}


# The seeds' scores are 60 +- 0.1. The 90 % interval is 2.92 / sqrt(3) deviations to each side, the 95 % interval 4.303 / sqrt(3).
@pytest.mark.parametrize(
    ("published", "margin", "mark"),
    [
        (60.5, 1.0, "reproduced"),
        (60.5, 0.6, "undecided"),
        (61.24, 1.0, "undecided"),
        (61.26, 1.0, "contradicted"),
        ([60.5, 0.5], 1.0, "undecided"),  # the paper's own error is too large for the margin
        ([60.0, 0.5], 1.0, "reproduced"),
    ],
)
def test_a_figure_is_judged_by_two_one_sided_tests(published: Any, margin: float, mark: str, tmp_path: Path) -> None:
    given = fill(tmp_path, {"A": [0.599, 0.6, 0.601]}, published={"A": {"": published}}, margin=margin, **RULE)
    (verdict,) = verdicts(given)
    assert verdict.mark == mark
    assert lines(paper_table(given))[-1][-1] == mark


def test_a_noisy_arm_reproduces_nothing(tmp_path: Path) -> None:
    """The interval of the scores 60, 80 and 95 % contains the published 84, and nearly every other value."""
    given = fill(tmp_path, {"A": [0.6, 0.8, 0.95]}, published={"A": {"": 84}}, margin=2, **RULE)
    assert verdicts(given)[0].mark == "undecided"


def test_the_interval_is_welchs(tmp_path: Path) -> None:
    """Our mean has the variance 1/3 with two degrees of freedom; the paper's mean has the known variance 0.25."""
    found = judge(estimate([59.0, 60.0, 61.0], 0.95), 0.95, 60.5, error=0.5)
    variance = 1 / 3 + 0.25
    freedom = variance**2 / ((1 / 3) ** 2 / 2)
    half = stats.t.ppf(0.95, freedom) * math.sqrt(variance)
    assert found.narrow == (pytest.approx(-0.5 - half), pytest.approx(-0.5 + half))
    # If each seed draws its own split, the paper's result on one split varies as much as each of our seeds.
    split = judge(estimate([59.0, 60.0, 61.0], 0.95), 0.95, 60.0, over_splits=True)
    assert split.wide[1] == pytest.approx(stats.t.ppf(0.975, 2) * math.sqrt(1 / 3 + 1))


@pytest.mark.parametrize(
    ("b", "published", "mark"),
    [
        ([0.6399, 0.64, 0.6401], 64.5, "reproduced"),  # a gain of 4 for the published 4.5
        ([0.66, 0.6402, 0.62], 64.5, "undecided"),
        ([0.6009, 0.601, 0.6011], 64.5, "contradicted"),
        ([0.6, 0.61, 0.62], 60.9, "undecided"),  # 2 would accept no gain at all: it is 0.45, half of the gain
        ([0.6399, 0.64, 0.6401], 60, "not judged"),
    ],
)
def test_gains_are_paired_and_come_first(b: list[float], published: float, mark: str, tmp_path: Path) -> None:
    given = fill(
        tmp_path, {"A": [0.5999, 0.6, 0.6001], "B": b}, published={"A": {"": 60.0}, "B": {"": published}}, margin=2, **RULE
    )
    first = verdicts(given)[0]
    assert (first.row, first.quantity, first.mark) == ("B", "gain", mark)


def test_a_gain_without_scores_is_judged(tmp_path: Path) -> None:
    given = fill(
        tmp_path, {"A": [0.5, 0.6, 0.7], "B": [0.521, 0.62, 0.719]}, published={"B": {"": {"gain": 2.05}}}, margin=1, **RULE
    )
    (verdict,) = verdicts(given)
    assert verdict.quantity == "gain" and verdict.mark == "reproduced"
    assert "+2.00" in paper_table(given) and "+2.05" in paper_table(given)


def test_gains_and_savings_over_another_row_are_neither_judged_nor_shown(tmp_path: Path) -> None:
    """C's published gain and saving are over A. Over B, only the gain between the paper's scores is known. D is compared with C."""
    figures = {"B": {"": 40}, "C": {"": {"score": 60, "gain": 10, "saved": 90}}, "D": {"": {"gain": 0.5}}}
    scores = {"A": [0.499, 0.5, 0.501], "B": [0.399, 0.4, 0.401], "C": [0.599, 0.6, 0.602], "D": [0.604, 0.605, 0.606]}
    given = fill(tmp_path, scores, published=figures, margin=2, against={"D": "C"}, **RULE)
    only = select(given.table, ["B", "C", "D"])
    assert only.published["D"][""]["gain"].value == 0.5 and only.against == {"B": "B", "C": "B", "D": "C"}
    for table in (only, with_against(given.table, dict.fromkeys(given.table.rows, "B"))):
        filled = ResultTable(table, [result for result in given.results if result.row in table.rows])
        found = [verdict for verdict in verdicts(filled) if (verdict.row, verdict.quantity) in (("C", "gain"), ("C", "saved"))]
        assert [(verdict.published.value, verdict.mark) for verdict in found] == [(20, "reproduced")]
        header, rows = summarise(filled)
        assert "published saving" not in header
        assert not any(dict(zip(header, row, strict=True)).get("published gain") for row in rows if row[0] != "D")


@pytest.mark.parametrize("confidence", [0.5, 0.9, 0.95, 0.99, 0.999])
@pytest.mark.parametrize(("last", "mark"), [(0.013, "undecided"), (0.016, "reproduced")])
def test_the_confidence_of_the_shown_intervals_changes_no_verdict(
    confidence: float, last: float, mark: str, tmp_path: Path
) -> None:
    """The 90 % interval of the gain excludes 0, the 99 % interval contains it, and the 95 % interval depends on the last seed."""
    gains = [0.004, 0.022, 0.016, 0, last]
    ends = {level: stats.t.interval(level, 4, np.mean(gains), stats.sem(gains))[0] for level in (0.9, 0.95, 0.99)}
    assert ends[0.99] < 0 < ends[0.9] and (ends[0.95] > 0) == (mark == "reproduced")
    scores = {"A": [0.6] * 5, "B": [0.6 + gain for gain in gains]}
    rule = {"margin": 2, "seeds": list(range(5)), "confidence": confidence, **RULE}
    (verdict,) = verdicts(fill(tmp_path, scores, published={"B": {"": {"gain": "0 to 2"}}}, **rule))
    assert verdict.mark == mark
    found = stats.t.interval(0.95, 4, np.mean(gains) * 100 - 1, stats.sem(gains) * 100)
    assert verdict.interval == (pytest.approx(found[0]), pytest.approx(found[1]))


@pytest.mark.parametrize(
    ("b", "published", "shown", "mark"),
    [
        ([0.749, 0.75, 0.751], "14 to 20", "+14.00 to +20.00", "reproduced"),
        ([0.809, 0.81, 0.811], "14 to 20", "+14.00 to +20.00", "reproduced"),  # a gain of 21, within the margin of 2
        ([0.829, 0.83, 0.831], "14 to 20", "+14.00 to +20.00", "contradicted"),
        ([0.604, 0.6045, 0.605], "-0.75 to 0.75", "-0.75 to +0.75", "reproduced"),
        ([0.6, 0.6045, 0.609], "-0.75 to 0.75", "-0.75 to +0.75", "undecided"),
        ([0.609, 0.61, 0.611], "-0.75 to 0.75", "-0.75 to +0.75", "contradicted"),  # the range itself is the margin
    ],
)
def test_a_gain_may_be_a_range(b: list[float], published: str, shown: str, mark: str, tmp_path: Path) -> None:
    given = fill(tmp_path, {"A": [0.5999, 0.6, 0.6001], "B": b}, published={"B": {"": {"gain": published}}}, margin=2, **RULE)
    (verdict,) = verdicts(given)
    assert verdict.mark == mark and f"| {shown} |" in paper_table(given)


def test_no_verdict_before_all_seeds_of_the_table_or_without_a_margin(tmp_path: Path) -> None:
    rule = {"margin": 9, **RULE}
    given = fill(
        tmp_path, {"A": [0.5, math.nan], "B": [0.6, 0.6], "C": [math.nan]}, published={r: {"": 50} for r in "ABC"}, **rule
    )
    marks = [verdict.mark for verdict in verdicts(given) if verdict.quantity == "score"]
    assert marks == ["1 of 3 seeds", "2 of 3 seeds", "not run"]
    assert [verdict.mark for verdict in verdicts(fill(tmp_path, {"A": A}, published={"A": {"": 60}}))] == ["no margin"]
    (verdict,) = verdicts(fill(tmp_path, {"A": [0.6, 0.6, 0.6]}, published={"A": {"": 60}}, exploratory=[1], **rule))
    assert verdict.mark == "reproduced" and verdict.shown == "reproduced (exploratory)"


def test_verdicts_count_the_seeds_of_the_table_alone(tmp_path: Path) -> None:
    """Ten further seeds (``--seeds``) would narrow the intervals. One of them has diverged, another has other settings."""
    scores = {"A": [0.58, 0.6, 0.62], "B": [0.64, 0.7, 0.76]}
    more = {row: [*values, *(values[1] + 0.001 * (seed % 2) for seed in range(10))] for row, values in scores.items()}
    given = {"published": {"A": {"": 60}, "B": {"": 70}}, "margin": 2, "seeds": [0, 1, 2], **RULE}
    planned = verdicts(fill(tmp_path, scores, **given))
    assert [verdict.mark for verdict in planned] == ["undecided"] * 3
    filled = fill(tmp_path, more, **given)
    others = [
        replace(result, diverged=result.seed == 3, facts=Facts(other="x" * (result.seed == 4))) for result in filled.results
    ]
    assert verdicts(ResultTable(replace(filled.table, seeds=tuple(range(13))), others)) == planned
    assert [row[-1] for row in lines(paper_table(filled))[1:]] == ["undecided"] * 3


@pytest.mark.parametrize(
    ("rounds", "published", "mark", "ours"),
    [
        ([13, 13], 12, "reproduced", "13"),
        ([13, 13], 9, "contradicted", "13"),
        ([6, 40], 13, "undecided", "23"),
        ([12, None], 13, "undecided", "> 100 (1 of 2 seeds reached it)"),
        ([None, None], 13, "contradicted", "> 100 (0 of 2 seeds reached it)"),
        ([None, None], 90, "undecided", "> 100 (0 of 2 seeds reached it)"),
        ([None, None], "> 100", "reproduced", "> 100 (0 of 2 seeds reached it)"),
        ([None, None], "> 200", "undecided", "> 100 (0 of 2 seeds reached it)"),
        ([12, 12], "> 100", "contradicted", "12"),
        # The third seed may need 5,000 rounds, whose interval decides nothing. 93.75 rounds are 1.25 squared times the published 60.
        ([90, 91, None], 60, "undecided", "> 100 (2 of 3 seeds reached it)"),
        ([90, 91, 5000], 60, "undecided", "1727"),
        ([94, 95, None], 60, "contradicted", "> 100 (2 of 3 seeds reached it)"),
        ([None, None, None], 65, "undecided", "> 100 (0 of 3 seeds reached it)"),
        ([12], 12, "one seed", "12"),
        ([None], 12, "one seed", "> 100 (0 of 1 seeds reached it)"),
    ],
)
def test_rounds_to_a_target_are_compared_as_ratios(
    rounds: list[int | None], published: Any, mark: str, ours: str, tmp_path: Path
) -> None:
    seeds = list(range(len(rounds)))
    figures = {"A": {"": {"rounds": published}}}
    plan = read_table(plan_file(tmp_path, rows={"A": None}, published=figures, seeds=seeds, margin={"rounds": 1.25}, **RULE))
    results = [
        Result("A", "", seed, True, 100, "test/accuracy", {"best": 0.5}, targets={"accuracy_0.5": (value, 10)} if value else {})
        for seed, value in enumerate(rounds)
    ]
    (line,) = lines(paper_table(ResultTable(plan, results)))[1:]
    assert (line[2], line[-1]) == (ours, mark)


# The log ratios of the rounds 18, 20 and 22 have the half widths 0.169 (90 %) and 0.249 (95 %). The margin is log 1.5 = 0.405.
@pytest.mark.parametrize(
    ("published", "more", "mark"),
    [
        (20, {}, "reproduced"),
        (20, {"vary": ["seed", "partition_seed"]}, "reproduced"),
        (17, {}, "reproduced"),
        (17, {"vary": ["seed", "partition_seed"]}, "undecided"),
        ([20, 2], {}, "reproduced"),
        ([20, 8], {}, "undecided"),
        ([20, 8], {"trials": 25}, "reproduced"),
    ],
)
def test_the_papers_spread_and_the_splits_count_for_rounds_as_for_scores(
    published: Any, more: dict[str, Any], mark: str, tmp_path: Path
) -> None:
    rule = {"seeds": [0, 1, 2], "margin": {"rounds": 1.5}, **RULE, **more}
    plan = read_table(plan_file(tmp_path, rows={"A": None}, published={"A": {"": {"rounds": published}}}, **rule))
    rounds = [18, 20, 22]
    runs = [
        Result("A", "", seed, True, 100, "test/accuracy", {}, targets={"accuracy_0.5": (value, 1)})
        for seed, value in enumerate(rounds)
    ]
    (verdict,) = verdicts(ResultTable(plan, runs))
    value, spread = published if isinstance(published, list) else (published, 0)
    own = np.var(np.log(rounds), ddof=1) / 3 * (1 if "vary" not in more else 4)
    variance = own + (spread / value) ** 2 / more.get("trials", 1)
    half = stats.t.ppf(0.975, variance**2 / (own**2 / 2)) * math.sqrt(variance)
    middle = np.mean(np.log(rounds)) - math.log(value)
    assert verdict.interval == pytest.approx((math.exp(middle - half), math.exp(middle + half))) and verdict.mark == mark


# A trains for 100 rounds of 10 bytes and reaches the target after 80 rounds or never. B needs 4 rounds and 20 extra bytes.
@pytest.mark.parametrize(
    ("needed", "published", "mark", "shown"),
    [
        ([80, 80], 92.5, "reproduced", "92.5 %"),
        ([80, 80], 90, "contradicted", "92.5 %"),
        ([80, 80], "> 92", "undecided", "92.5 %"),
        ([80], 92.5, "one seed", "92.5 %"),
        ([None, None], 96, "undecided", "> 94.0 %"),
    ],
)
def test_bytes_saved_on_the_way_to_a_target(
    needed: list[int | None], published: Any, mark: str, shown: str, tmp_path: Path
) -> None:
    figures = {"B": {"": {"saved": published}}}
    rule = {"seeds": list(range(len(needed))), "margin": {"saved": 1}, **RULE}
    plan = read_table(plan_file(tmp_path, rows={"A": None, "B": None}, published=figures, **rule))

    def run(row: str, seed: int, rounds: int | None, before: int = 0) -> Result:
        targets = {"accuracy_0.5": (rounds, 10 * rounds + before)} if rounds else {}
        return Result(
            row, "", seed, True, 100, "test/accuracy", {"best": 0.5}, targets=targets, facts=Facts(total_bytes=1000 + before)
        )

    runs = [run(*one) for seed, rounds in enumerate(needed) for one in (("A", seed, rounds), ("B", seed, 4, 20))]
    given = ResultTable(plan, runs)
    (line,) = [row for row in lines(paper_table(given))[1:] if row[1] == "bytes saved"]
    assert (line[2], line[-1]) == (shown, mark)
    header, rows = summarise(given)
    assert any("bytes to a target count in both directions" in note for note in notes(given, "std"))
    text = rows[1][header.index("rounds and bytes saved")]
    rounds = statistics.fmean(value or 100 for value in needed) / 4
    assert text == (f"> {rounds:.1f}x, {shown}" if None in needed else f"{rounds:.1f}x, {shown}")
    assert rows[0][header.index("rounds and bytes saved")] == ""
    write_csv(given, tmp_path / "table.csv")
    with (tmp_path / "table.csv").open() as file:
        b = list(csv.DictReader(file))[1]
    assert float(b["times_fewer_rounds"]) == pytest.approx(rounds) and b["savings_are_lower_bounds"] == str(int(None in needed))


def test_what_does_not_get_there_saves_nothing(tmp_path: Path) -> None:
    rule = {"seeds": [0, 1], "margin": {"saved": 1}, **RULE}
    plan = read_table(plan_file(tmp_path, rows={"A": None, "B": None}, published={"B": {"": {"saved": 90}}}, **rule))
    assert verdicts(ResultTable(plan, []))[0].mark == "not run"
    results = [
        Result(row, "", seed, True, 100, "test/accuracy", {"best": 0.5}, targets={"accuracy_0.5": (9, 90)} if row == "A" else {})
        for row in "AB"
        for seed in (0, 1)
    ]
    (verdict,) = verdicts(ResultTable(plan, results))
    assert (verdict.text, verdict.mark) == ("target not reached (2 of 2 seeds)", "undecided")
    assert "rounds and bytes saved" not in summarise(ResultTable(plan, results))[0]


def test_bytes_and_seconds(tmp_path: Path) -> None:
    figures = {"bytes": 1000, "seconds": [983, 100]}
    plan = read_table(plan_file(tmp_path, rows=dict.fromkeys("ABC"), published={row: {"": figures} for row in "ABC"}))
    results = [
        Result(row, "", 0, True, 1, None, {}, facts=Facts(seconds=5, total_bytes=sent))
        for row, sent in (("A", 1009), ("B", 1011), ("C", math.nan))
    ]
    marks = [(verdict.row, verdict.quantity, verdict.mark) for verdict in verdicts(ResultTable(plan, results))]
    judged = [("A", "bytes", "reproduced"), ("A", "seconds", "not judged")]
    judged += [("B", "bytes", "contradicted"), ("B", "seconds", "not judged")]
    judged += [("C", "bytes", "undecided"), ("C", "seconds", "not judged")]  # a private run tells no bytes
    assert marks == judged
    assert "983 s ± 100 s" in paper_table(ResultTable(plan, results))


def test_an_average_over_settings_is_seed_by_seed(tmp_path: Path) -> None:
    """Over seeds, the mean over settings varies less than each setting, because the settings vary in opposite directions."""
    given = fill(tmp_path, {"A": A}, columns={"x": None, "y": None}, average="all", published={"A": {"all": [60, 0.5]}})
    results = [replace(result, scores={"best": 1.2 - result.scores["best"]}) for result in given.of("A", "y")]
    given = ResultTable(given.table, [*given.of("A", "x"), *results[:2]])
    assert given.scores("A", "all", "best") == {0: pytest.approx(60), 1: pytest.approx(60)}
    (verdict,) = verdicts(given)
    assert verdict.ours is not None and verdict.ours.count == 2
    header, (row,) = summarise(given)
    assert header[:4] == ["", "x", "y", "all"] and row[3] == "60.00 ± 0.00 (n = 2) [60.00 ± 0.50]"


def test_the_worst_case_over_settings_is_seed_by_seed(tmp_path: Path) -> None:
    given = fill(tmp_path, {"A": A}, columns={"x": None, "y": None}, worst="worst case", published={"A": {"worst case": 55}})
    results = [replace(result, scores={"best": 1.2 - result.scores["best"]}) for result in given.of("A", "y")]
    mixed = ResultTable(given.table, [*given.of("A", "x"), *results])
    x, y, worst = (mixed.scores("A", column, "best") for column in ("x", "y", "worst case"))
    assert worst == {seed: pytest.approx(min(x[seed], y[seed])) for seed in x} and worst not in (x, y)
    losses = [replace(result, metric="val/loss") for column in ("x", "y") for result in mixed.of("A", column)]
    assert ResultTable(given.table, losses).of("A", "worst case")[0].scores["best"] == max(x[0], y[0]) / 100
    header, (row,) = summarise(mixed)
    assert header[:4] == ["", "x", "y", "worst case"] and row[3].endswith("[55.00]")
    for column in ("x", "y"):
        unknown = [replace(result, scores={"best": math.nan}) if result.column == column else result for result in mixed.results]
        assert all(map(math.isnan, ResultTable(given.table, unknown).scores("A", "worst case", "best").values()))


def test_one_page_shows_all_settings_and_each_has_its_own_table(tmp_path: Path) -> None:
    given = fill(tmp_path, {"A": A, "B": B}, columns={"x": None, "y": None}, published={"B": {"x": 62}})
    header, (a, b) = summarise(given)
    assert header[:3] == ["", "x", "y"] and a[1:3] == ["60.00 ± 10.00"] * 2
    assert b[1:3] == ["62.00 ± 9.54 [62.00]", "62.00 ± 9.54"]
    said = text(given, "std")
    assert "The first table has the best evaluation of each run; the paper's is in brackets." in said
    assert said.index("**Differences**") < said.index("**The paper**") < said.index("**x**\n\n|  | best |") < said.index("**y**")


def test_deviations_over_rounds(tmp_path: Path) -> None:
    plan = read_table(plan_file(tmp_path, seeds=[0, 1], last=2, over_rounds=True, summary="mean", rows={"A": None}))
    runs = cells(plan, tmp_path / "out", [])
    fake_run(runs[0], [0.9, 0.5, 0.7], finished=True)
    given = filled(plan, runs)
    assert summarise(given)[1][0][3] == f"60.00 ± {statistics.stdev([50, 70]):.2f} (n = 1)"
    assert "The ± of the mean of the last evaluations is their standard deviation" in " ".join(notes(given, "std"))
    fake_run(runs[1], [0.0, 0.4, 0.4], finished=True)
    assert summarise(filled(plan, runs))[1][0][3] == f"50.00 ± {statistics.stdev([50, 70]) / 2:.2f}"
    assert r"50.00} {\scriptsize $\pm$ 7.07}" in latex(filled(plan, runs), "std")


def test_what_is_best_says_by_what_it_was_chosen(tmp_path: Path) -> None:
    plan = read_table(plan_file(tmp_path, rows={"A": None}))
    (cell,) = cells(plan, tmp_path / "out", [])
    run = fake_run(cell, [0.9, 0.5])
    assert summarise(filled(plan, [cell]))[0][1] == "best"
    assert (
        "picked on the test set, as papers do, and is therefore too good; no run had a validation set"
        in notes(filled(plan, [cell]), "std")[0]
    )
    (run / "metrics.csv").unlink()
    run.rmdir()
    fake_run(cell, [0.9, 0.5], val__accuracy=[0.1, 0.2])
    header, (row,) = summarise(filled(plan, [cell]))
    assert header[1:3] == ["best on test", "at best val"] and row[1:3] == ["90.00", "50.00"]


def test_runs_with_other_settings_are_named(tmp_path: Path) -> None:
    """For example, the runs of a trial: flcog compare fedcog -- --trainer.rounds 5."""
    given = fill(tmp_path, {"A": A, "B": B}, published={"A": {"": 60}, "B": {"": 62}}, margin=20, **RULE)
    assert not any("other settings" in note for note in notes(given, "std"))
    short = [replace(result, facts=Facts(other="trainer.rounds 5 instead of 9")) for result in given.of("A", "")]
    trial = ResultTable(given.table, [*short, *given.of("B", "")])
    assert any(
        "Run with other settings than the table's, and not judged: trainer.rounds 5 instead of 9 (A · seed 0)" in n
        for n in notes(trial, "std")
    )
    marks = {(verdict.row, verdict.quantity): verdict.mark for verdict in verdicts(trial)}
    assert marks[("A", "score")] == marks[("B", "gain")] == "other settings" != marks[("B", "score")]


def test_each_run_of_a_version_is_counted(tmp_path: Path) -> None:
    """Runs with the same row, seed and day are distinguished by their settings. Cells with equal settings show the same run."""
    given = fill(tmp_path, {"A": A})
    first = given.of("A", "")[0]
    made = [
        replace(first, facts=Facts(version="0.1.0", commit=c, settings=s))
        for c, s in [("a", "1"), ("a", "2"), ("b", "3"), ("b", "3")]
    ]
    assert any(
        "flcog 0.1.0 at commit a (2 runs); flcog 0.1.0 at commit b (1 runs)" in note
        for note in notes(ResultTable(given.table, made), "std")
    )


def test_versions_of_the_code_are_named(tmp_path: Path) -> None:
    given = fill(tmp_path, {"A": A})
    made = [
        replace(r, facts=Facts(version="0.1.0", commit=c))
        for r, c in zip(given.of("A", ""), ["a" * 40, "a" * 40, "b" * 40], strict=True)
    ]
    assert any(
        "The runs compare 2 versions of the code: flcog 0.1.0 at commit aaaaaaaaaa (2 runs)" in note
        for note in notes(ResultTable(given.table, made), "std")
    )
    assert "All runs that say so were made with flcog 0.1.0 at commit aaaaaaaaaa." in notes(
        ResultTable(given.table, made[:2]), "std"
    )


@pytest.mark.parametrize(
    ("commits", "counts"),
    [
        (["a" * 40, "b" * 40], "commit aaaaaaaaaa (1 runs); commit bbbbbbbbbb (1 runs)"),
        (["a" * 40, "a" * 40 + "+changes"], "commit aaaaaaaaaa (1 runs); commit aaaaaaaaaa with changes (1 runs)"),
        (["a" * 40 + "+changes"] * 2, "commit aaaaaaaaaa with changes (2 runs)"),
        (["unknown"] * 2, "commit unknown (2 runs)"),
        (["a" * 40] * 2, None),
        (["a" * 40 + "+changes"], None),
        (["", ""], None),
    ],
)
def test_a_note_tells_that_own_code_may_have_changed(commits: list[str], counts: str | None, tmp_path: Path) -> None:
    given = fill(tmp_path, {"A": A})
    made = [replace(r, facts=Facts(own_commit=c)) for r, c in zip(given.of("A", ""), commits, strict=False)]
    found = [note for note in notes(ResultTable(given.table, made), "std") if "classes of your own" in note]
    assert len(found) == (counts is not None) and all(f"changed between them: {counts}." in note for note in found)


def test_unfinished_runs_are_named_and_in_no_mean(tmp_path: Path) -> None:
    plan = read_table(plan_file(tmp_path, seeds=[0, 1]))
    runs = cells(plan, tmp_path / "out", [])
    for cell in runs:
        fake_run(cell, [0.5 + cell.seed / 8], finished=cell.seed == 0 or cell.row == "A")
    given = filled(plan, runs)
    assert given.comparisons("")["B"].difference.count == 1
    assert any(
        "Not finished, and left out if another seed has finished: B · seed 1 (round 1)" in note for note in notes(given, "std")
    )
    assert [row[1] for row in summarise(given)[1]] == ["56.25 ± 8.84", "50.00 (n = 1)"]
    assert r"B & \underline{50.00} \\" in latex(given, "std")
    (runs[-2].folder / "finished").unlink()  # now no run of B has finished, and the table shows the scores of both so far
    assert summarise(filled(plan, runs))[1][1][1] == "56.25 ± 8.84"
    # The LaTeX table for a paper leaves unfinished runs out.
    assert r"B & -- \\" in latex(filled(plan, runs), "std") and "mean over 2 seeds" in latex(filled(plan, runs), "std")


def test_latex_has_the_best_bold_and_the_second_underlined(tmp_path: Path) -> None:
    given = fill(
        tmp_path, {"A_1 & α": [0.5], "B": [0.7], "C": [0.7], "D": [math.nan]}, columns={"x": None, "100 %": None}, seeds=[0]
    )
    text = latex(given, "std")
    assert r"A\_1 \& $\alpha$ & \underline{50.00} & \underline{50.00} \\" in text
    assert r"B & \textbf{70.00} & \textbf{70.00} \\" in text and r"C & \textbf{70.00} & \textbf{70.00} \\" in text
    assert r"D & -- & -- \\" in text and r" & 100 \% & x \\" in text
    assert r"\begin{tabular}{lcc}" in text
    for name in ("table", "tabular"):
        assert text.count(rf"\begin{{{name}}}") == text.count(rf"\end{{{name}}}") == 1
    assert [line for line in text.splitlines() if line.endswith("rule")] == [r"\toprule", r"\midrule", r"\bottomrule"]
    assert text.count("{") == text.count("}")


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="there is no pdflatex")
def test_latex_compiles(tmp_path: Path) -> None:
    """All shipped tables compile, and so does a table with LaTeX's special characters. No table is wider than the page's text."""
    letters = "[A] * → ≈ ≠ & 50% $5 #1 a_b {c} ~ ^ \\ <α> Δ | ± × ≥ ≤ ∞ − · é"
    tables = [latex(with_scores(replace(read_table(path), seeds=(0, 1, 2))), "interval") for path in TABLES]
    tables.append(latex(fill(tmp_path, {letters: A, "[B]": B, "*": C}, columns={letters: None}, title=letters), "std"))
    document = "\n\\clearpage\n".join(tables)
    (tmp_path / "a.tex").write_text(
        rf"\documentclass{{article}}\usepackage{{booktabs,graphicx}}\begin{{document}}{document}\end{{document}}"
    )
    done = subprocess.run(["pdflatex", "-halt-on-error", "a.tex"], cwd=tmp_path, stdout=subprocess.PIPE, check=False)
    said = done.stdout.decode(errors="replace")
    assert done.returncode == 0, said[-500:]
    assert r"Overfull \hbox" not in said


def test_latex_ranks_no_bounds(tmp_path: Path) -> None:
    table = with_bounds(read_table(plan_file(tmp_path)))
    scores = {"A": 0.5, "B": 0.25, "Centralized": 0.75, "Local": 0.375}
    given = ResultTable(table, [Result(row, "", 0, True, 9, "test/accuracy", {"best": score}) for row, score in scores.items()])
    text = latex(given, "std")
    assert r"A & \textbf{50.00}" in text and r"B & \underline{25.00}" in text
    assert r"Centralized & 75.00 \\" in text and r"Local & 37.50 \\" in text
    assert "Best in bold, second underlined, Centralized and Local apart." in text


def test_latex_ranks_what_is_a_number(tmp_path: Path) -> None:
    plan = read_table(plan_file(tmp_path, rows=dict.fromkeys("ABCD")))
    scores = {"A": 0.5, "B": math.nan, "C": 0.75, "D": 0.25}
    given = ResultTable(plan, [Result(row, "", 0, True, 9, "test/accuracy", {"best": score}) for row, score in scores.items()])
    text = latex(given, "std")
    assert (
        r"C & \textbf{75.00}" in text and r"A & \underline{50.00}" in text and r"B & nan \\" in text and r"D & 25.00 \\" in text
    )
    assert "Without a finite score at the end, and left out of intervals and differences: B · seed 0." in notes(given, "std")


def test_latex_ranks_losses_the_other_way(tmp_path: Path) -> None:
    plan = read_table(plan_file(tmp_path))
    results = [Result(row, "", 0, True, 9, "test/loss", {"best": score}) for row, score in (("A", 0.5), ("B", 0.25))]
    assert r"B & \textbf{0.2500}" in latex(ResultTable(plan, results), "std")


@pytest.mark.parametrize(
    ("metric", "scores", "shown"),
    [
        ("test/loss", [0.43534, 0.33291], ["0.4353", "-0.1024"]),
        ("test/loss", [43.534, 33.291], ["43.53", "-10.24"]),
        ("test/loss", [0.43534, 0.43534, 2e6], ["0.4353", "+0.0000"]),  # one row has diverged
        ("test/accuracy", [0.43534, 0.33291], ["43.53", "-10.24"]),
    ],
)
def test_small_losses_have_four_decimals(metric: str, scores: list[float], shown: list[str], tmp_path: Path) -> None:
    plan = read_table(plan_file(tmp_path, seeds=[0, 1], rows=dict.fromkeys("ABC"[: len(scores)])))
    results = [
        Result(row, "", s, True, 9, metric, {"best": score}) for row, score in zip("ABC", scores, strict=False) for s in (0, 1)
    ]
    given = ResultTable(plan, results)
    header, rows = summarise(given)
    places = len(shown[0].partition(".")[2])
    assert rows[0][header.index("best")] == f"{shown[0]} ± {0:.{places}f}"
    assert f"| B | A | 2 | {shown[1]} |" in difference_table(given)


def test_latex_escapes_what_it_would_read_as_its_own() -> None:
    assert escape("50% of {x}_1 #2 $3 ~ ^ \\ <λ> Δ Α ο ± →") == (
        r"50\% of \{x\}\_1 \#2 \$3 \textasciitilde{} \textasciicircum{} \textbackslash{} \textless{}$\lambda$\textgreater{} "
        r"$\Delta$ Α ο $\pm$ $\rightarrow$"
    )
    greek = "αβγδεζηθικλμνξπρςστυφχψω"
    named = "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi pi rho sigma sigma tau upsilon phi chi psi omega"
    assert escape(greek) == "".join(f"$\\{name}$" for name in named.split())
    assert escape("[2] *") == "{[}2{]} {*}"  # after the \\\\ of the previous row, LaTeX would read [ or * as its argument


def test_the_csv_holds_numbers(tmp_path: Path) -> None:
    given = fill(tmp_path, {"A": A, "B": B}, columns={"x": None}, published={"B": {"x": [62, 0.5]}})
    write_csv(given, tmp_path / "table.csv")
    a, b = csv.DictReader((tmp_path / "table.csv").open())
    assert (a["row"], a["column"], float(a["best"]), float(a["best_std"]), a["difference"]) == ("A", "x", 60, 10, "")
    low, high = stats.ttest_rel(B, A).confidence_interval()
    assert [float(b[name]) for name in ("difference", "difference_low", "difference_high", "published", "published_std")] == [
        *(pytest.approx(2), pytest.approx(100 * low), pytest.approx(100 * high), 62, 0.5)
    ]
    assert (b["against"], b["pairs"], b["published_verdict"]) == ("A", "3", "no margin")
    for line in (a, b):
        for name, value in line.items():
            assert name in ("row", "column", "metric", "against", "published_verdict") or not value or math.isfinite(float(value))


def test_curves_are_means_with_their_intervals(tmp_path: Path) -> None:
    series = [[(1, 20.0), (2, 40.0), (3, 90.0)], [(1, 40.0), (2, 80.0)], [(1, 30.0), (2, 60.0)]]
    curve = over_seeds(series, 0.95)
    assert curve.rounds.tolist() == [1, 2, 3] and curve.mean.tolist() == pytest.approx([30, 60, 90])
    half = 4.302653 * np.array([10, 20]) / math.sqrt(3)
    assert curve.high[:2] - curve.mean[:2] == pytest.approx(half) and curve.mean[:2] - curve.low[:2] == pytest.approx(half)
    assert math.isnan(curve.low[2])  # one seed has no interval, and the interval of two seeds is too wide to be useful
    assert np.isnan(over_seeds(series[:2], 0.95).low).all()
    figure = curves_figure({"x": {"A": series, "B": []}, "y": {"A": series[:2]}}, dict.fromkeys("xy", "Test accuracy (%)"), 0.95)
    said = "Means over 2 to 3 seeds; bands: 95 % intervals of the mean (Student's t, from three seeds on)."
    assert figure.get_supxlabel() == said and [axes.get_title() for axes in figure.axes] == ["x", "y"]
    first, second = figure.axes
    assert [text.get_text() for text in first.texts] == ["A"], "a line is labelled at its end"
    assert first.get_ylabel() == "Test accuracy (%)" and second.get_ylabel() == "" and first.get_ylim() == second.get_ylim()
    assert all(float(tick).is_integer() for axes in figure.axes for tick in axes.get_xticks())
    assert first.get_ylim()[0] > 0 and first.get_ylim()[1] < 100  # the wide bands are cut off
    for count, words in ((1, "One seed."), (2, "Means over 2 seeds.")):
        assert curves_figure({"": {"A": series[:count]}}, {"": ""}, 0.95).get_supxlabel() == words
    for arms, are_grey in (("AB", False), ("ABC", True)):
        assert ("grey" in curves_figure({"": dict.fromkeys(arms, series)}, {"": ""}, 0.95).get_supxlabel()) == are_grey


def test_the_caption_is_not_wider_than_the_figure() -> None:
    """A single panel is narrower than the caption on bands in one line."""
    figure = curves_figure({"FMNIST NIID-2": {"A": [[(1, 20.0), (2, 40.0)]] * 3}}, {"FMNIST NIID-2": "Test accuracy (%)"}, 0.95)
    figure.draw_without_rendering()
    (box,) = [text.get_window_extent() for text in figure.texts]
    assert "Student's t" in figure.get_supxlabel() and box.x0 >= 0 and box.x1 <= figure.bbox.width


def test_panels_whose_axes_differ_say_so() -> None:
    settings = {"easy": {"A": [[(1, 90.0), (2, 91.0)]]}, "hard": {"A": [[(1, 10.0), (2, 30.0)]]}}
    figure = curves_figure(settings, dict.fromkeys(settings, "Test accuracy (%)"), 0.95)
    assert figure.get_supxlabel() == "One seed. The panels' vertical axes differ."
    assert [axes.get_ylabel() for axes in figure.axes] == ["Test accuracy (%)"] * 2


def test_no_two_lines_of_a_panel_look_alike() -> None:
    """Each band has its own panel, with the other arms in grey. If there are more arms than colours, they continue in further panels."""
    one = [[(1, 20.0), (2, 40.0)], [(1, 25.0), (2, 45.0)], [(1, 30.0), (2, 60.0)]]
    figure = curves_figure({"": dict.fromkeys("ABC", one)}, {"": "Test loss"}, 0.95)
    assert [axes.get_title() for axes in figure.axes] == ["A", "B", "C"]
    assert all(len({line.get_color() for line in axes.lines}) == 2 and len(axes.lines) == 3 for axes in figure.axes)
    figure = curves_figure({"x": {str(arm): one[:1] for arm in range(17)}, "y": {"0": one[:1]}}, dict.fromkeys("xy", ""), 0.95)
    assert [axes.get_title() for axes in figure.axes] == ["x (1 of 3)", "x (2 of 3)", "x (3 of 3)", "y"]
    for axes in figure.axes:
        assert len({(line.get_color(), line.get_linestyle()) for line in axes.lines}) == len(axes.lines) <= 8


def test_curves_are_drawn_in_percent_for_screen_and_paper(tmp_path: Path) -> None:
    plan = read_table(plan_file(tmp_path, seeds=[0, 1]))
    runs = cells(plan, tmp_path / "out", [])
    assert draw_curves(plan, results_of(plan, runs, None), tmp_path) == []
    for cell in runs:
        fake_run(cell, [0.2, 0.4, 0.9] if cell.seed else [0.4, 0.8])
    png, pdf = draw_curves(plan, results_of(plan, runs, None), tmp_path)
    assert png.read_bytes()[:4] == b"\x89PNG" and pdf.read_bytes()[:4] == b"%PDF"


def test_scores_are_drawn_against_megabytes_if_arms_send_unlike_amounts(tmp_path: Path) -> None:
    plan = read_table(plan_file(tmp_path, seeds=[0, 1]))
    runs, drawn = cells(plan, tmp_path / "out", []), []
    for cell in runs:
        sent = np.array([1e6, 2e6]) * (1 if cell.row == "A" else 2)
        fake_run(cell, [0.2, 0.4], comm__up_bytes_total=sent, comm__total_bytes=sent + np.array([4e6, 8e6]))
    results = results_of(plan, runs, None)
    with mock.patch("flcog.commands.compare.megabytes.write_both", lambda draw, out, name: drawn.append(draw()) or []):
        assert draw_megabytes(plan, results, tmp_path) == []
        (axes,) = drawn[0].axes
        lines = {line.get_label(): line.get_xdata().tolist() for line in axes.lines if not line.get_label().startswith("_")}
        assert lines == {"A": [1.0, 2.0], "B": [2.0, 4.0]} and axes.get_xlabel() == "Megabytes sent up"
        assert draw_megabytes(plan, [result for result in results if result.row == "A"], tmp_path) == [] and len(drawn) == 1


def test_private_arms_which_withhold_their_bytes_are_not_drawn_against_megabytes(tmp_path: Path) -> None:
    """Runs of ``DPFedAvg`` have no columns of bytes."""
    plan = read_table(plan_file(tmp_path, rows={"private": None, "A": None, "B": None}, seeds=[0]))
    runs, drawn = cells(plan, tmp_path / "out", []), []
    for cell in runs:
        sent = {"A": [1e6, 2e6], "B": [2e6, 4e6]}.get(cell.row)
        fake_run(cell, [0.2, 0.4], **({} if sent is None else {"comm__up_bytes_total": sent, "comm__total_bytes": sent}))
    with mock.patch("flcog.commands.compare.megabytes.write_both", lambda draw, out, name: drawn.append(draw()) or []):
        draw_megabytes(plan, results_of(plan, runs, None), tmp_path)
    (axes,) = drawn[0].axes
    assert [line.get_label() for line in axes.lines if not line.get_label().startswith("_")] == ["A", "B"]


def test_a_papers_figure_as_text(tmp_path: Path) -> None:
    given = fill(tmp_path, {"A": [0.5]}, published={"A": {"": [73.07, 0.08]}})
    assert given.table.published["A"][""]["score"] == Figure(73.07, 0.08)
    header, (row,) = summarise(given)
    assert row[header.index("published")] == "73.07 ± 0.08"


def with_scores(table: Table) -> ResultTable:
    """Results for the table whose scores equal the paper's on average over three seeds."""
    rng = np.random.default_rng(0)
    results = []
    for row, column, shift in itertools.product(table.rows, table.columns, (-1.0, 0.0, 1.0)):
        figure = table.published.get(row, {}).get(column, {}).get("score")
        score = (figure.value if figure else 50) + shift + rng.normal(0, 0.01)
        scores = dict.fromkeys(get_args(Summary), score)
        results.append(
            Result(row, column, int(shift) + 1, True, 9, "test/accuracy", scores, averaged=5, facts=Facts(seconds=1.0))
        )
    return ResultTable(table, results)


@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.stem)
def test_every_table_of_ours_is_reported(path: Path, tmp_path: Path) -> None:
    """A published score is not contradicted if it is the mean of the seeds."""
    given = with_scores(replace(read_table(path), seeds=(0, 1, 2)))
    table, said = given.table, text(given, "std")
    assert said.startswith(table.title) and not re.search(r"\b(nan|inf)\b", said)
    marks = [verdict.mark for verdict in verdicts(given) if verdict.quantity == "score" and verdict.column in table.columns]
    assert "contradicted" not in marks and "not run" not in marks
    assert latex(given, "interval").count(r"\\") == len(table.rows) + 1
    write_csv(given, tmp_path / "table.csv")
    assert len((tmp_path / "table.csv").read_text().splitlines()) == 1 + len(table.rows) * len(given.columns)
