"""The report of ``flcog compare``: scores over seeds, differences between rows, verdicts on a paper's figures, and the table in LaTeX."""

import itertools
import math
import re
import shutil
import statistics
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from commands.comparisons import TABLES, cells, fake_run, filled, table, table_file
from flcog.commands.cli import main
from flcog.commands.compare.notes import notes
from flcog.commands.compare.report import _differences_text, _markdown, _paper_text, in_view, latex, text
from flcog.commands.compare.result_table import SUMMARIES, ResultTable
from flcog.commands.compare.results import FACTS, Target
from flcog.commands.compare.runs import runs_of
from flcog.commands.compare.table import Table, read_table, select, with_bounds
from flcog.commands.compare.verdicts import Verdict, verdicts

A, B, C = [0.50, 0.60, 0.70], [0.52, 0.63, 0.71], [0.40, 0.40, 0.40]
RULE: dict[str, Any] = {"reason": "A test."}


def result(row: str, seed: int, score: float = 0.5, view: str = "", **facts: Any) -> dict[str, Any]:
    """A result whose summaries all have this score; NaN marks a seed that has not finished."""
    known = {"row": row, "column": view, "view": view, "seed": seed, "label": f"{row} · seed {seed}", "history": [], "other": ""}
    known |= {name: kind() if kind is not float else math.nan for name, kind in FACTS.items()} | {"rounds": 9, "waiting": 0.0}
    known |= {
        "metric": "test/accuracy",
        "finished": not math.isnan(score),
        "averaged": 5,
        "targets": {},
        "asked": "",
        "deviation": 0.01,
    }
    known |= {"spent": Target(100, 1000)} | (dict.fromkeys(SUMMARIES, score) if not math.isnan(score) else {"metric": None})
    return known | facts


def fill(folder: Path, scores: dict[str, list[float]], **content: Any) -> ResultTable:
    """A table with a row for each name and its seeds' scores."""
    plan = table(folder, rows=dict.fromkeys(scores), **{"seeds": [0, 1, 2]} | content)
    places = [(view, row, *each) for view in plan.views for row, values in scores.items() for each in enumerate(values)]
    return ResultTable(plan, [result(row, seed, score, view) for view, row, seed, score in places])


def differences(given: ResultTable) -> list[list[str]]:
    return cells(_markdown(_differences_text(given)))[1:]


def paper(given: ResultTable) -> list[list[str]]:
    return cells(_markdown(_paper_text(given, verdicts(given))))[1:]


def marks(given: ResultTable) -> list[str]:
    return [verdict.mark for verdict in verdicts(given)]


# Scores -------------------------------------------------------------------------------------------------------------------------------


def test_scores_over_seeds(tmp_path: Path) -> None:
    plan = table(tmp_path, seeds=[0, 1], published={"B": {"": 71.5}})
    series = {("A", 0): [0.1, 0.5, 0.4], ("A", 1): [0.7, 0.6, 0.2], ("B", 0): [0.9, 0, 0, 0, 0, 0.25]}
    runs = runs_of(plan, tmp_path / "out")
    for run in runs:
        if (run.row, run.seed) in series:
            fake_run(run, series[run.row, run.seed], time=2.0 if run.row == "A" else 5.0)
    header, a, b = cells(text(filled(plan, runs), []))[:3]
    assert header == ["", "best", "last", "mean of last 3 to 5", "published", "total time", "time of an acting round", "sent up"]
    assert a == ["A", "60.00 ± 14.14", "30.00 ± 14.14", "41.67 ± 11.79", "", "1.00 (6.00 s)", "1.00 (2.00 s)", "1.5 KiB"]
    # The mean is over the last five evaluations, not the sixth.
    assert b == ["B", "90.00 (n = 1)", "25.00 (n = 1)", "5.00 (n = 1)", "71.50", "5.00 (30.0 s)", "2.50 (5.00 s)", "3.0 KiB"]
    header, _, b = cells(text(filled(replace(plan, last=6), runs), []))[:3]
    assert header[3] == "mean of last 3 to 6" and b[3] == f"{(90 + 25) / 6:.2f} (n = 1)"


@pytest.mark.slow
def test_options_choose_partner_spread_and_seeds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = table_file(tmp_path, rows={"A": None, "B": None, "C": None}, published={"B": {"": {"gain": 1}}})
    for run in runs_of(replace(read_table(path), seeds=(0, 4, 11)), tmp_path / "out"):
        fake_run(run, [(A if run.row == "A" else B)[run.seed % 4 % 3 if run.seed < 11 else 1]], finished=True)
    command = ["compare", str(path), "--out", str(tmp_path / "out"), "--show"]

    def shown(*more: str) -> str:
        main([*command, *more])
        return capsys.readouterr().out

    said = shown("--against", "B", "--spread", "sem", "--last", "7")
    assert "| A | B | 3 |" in said and "published gain" not in said and "± is the standard error" in said
    assert "published gain" in shown("--spread", "interval") and "| A | 60.00 |" in shown("--seeds", "11")
    for wrong, message in (
        (["--against", "D"], "--against D: the table has the rows A B C"),
        (["--seeds", "-1"], "NonNegativeInt"),
    ):
        with pytest.raises(SystemExit):
            main([*command, *wrong])
        assert message in capsys.readouterr().err
    files = {path.name for path in (tmp_path / "out").iterdir() if path.is_file()}
    assert files == {"table.md", "table.tex", "table.csv", "differences.csv", "paper.csv", "curves.png", "curves.pdf"}


def test_a_row_without_runs_has_no_spread(tmp_path: Path) -> None:
    given = fill(tmp_path, {"A": A, "B": []}, spread="sem")
    sem = 100 * statistics.stdev(A) / math.sqrt(3)
    assert f"60.00 {{\\scriptsize $\\pm$ {sem:.2f}}}" in latex(given) and "B & --" in latex(given)


def test_a_column_may_have_its_own_summary(tmp_path: Path) -> None:
    metrics = {"noted": {"metric": "training/accuracy", "summary": "last"}, "test": "test/accuracy"}
    plan = table(tmp_path, metrics=metrics, published={"A": {"noted": 70.0}})
    runs = runs_of(plan, tmp_path / "out")
    for run in runs:
        fake_run(run, [0.5, 0.625, 0.25], finished=True, training__accuracy=[0.875, 0.75, 0.75])
    given = filled(plan, runs)
    header, a, _ = cells(text(given, verdicts(given)))[:3]
    assert (header[1:3], a[1:3]) == (["noted", "test"], ["75.00 [70.00]", "62.50"])
    assert verdicts(given)[0].ours.mean == 75
    assert "has the last evaluation for noted; best evaluation for test of each run; the paper's is in brackets." in " ".join(
        notes(given)
    )


# Differences --------------------------------------------------------------------------------------------------------------------------


def test_differences_are_paired_with_the_first_row(tmp_path: Path) -> None:
    b, c = differences(fill(tmp_path, {"A": A, "B": B, "C": C}))
    expected = [stats.ttest_rel(arm, A) for arm in (B, C)]
    interval = expected[0].confidence_interval()
    assert b[:5] == ["B", "A", "3", "+2.00", f"{100 * interval.low:.2f} to {100 * interval.high:.2f}"]
    assert [float(row[5]) for row in (b, c)] == [pytest.approx(found.pvalue, abs=5e-4) for found in expected]
    # Holm's correction of two tests doubles the smaller p-value, and the larger one becomes at least as large as this.
    smaller = 2 * min(found.pvalue for found in expected)
    assert [float(row[6]) for row in (b, c)] == [pytest.approx(max(smaller, found.pvalue), abs=5e-4) for found in expected]


@pytest.mark.parametrize(
    ("a", "b", "said"),
    [
        ([0.5, math.nan, 0.7], B, ["2", "+1.50"]),
        ([0.5], [math.nan, 0.6], None),
        ([0.5], [0.6], ["1", "+10.00", "one seed: no interval"]),
        (A, A, ["3", "+0.00", "the same with all 3 seeds: no interval", "1.000", "1.000"]),
        ([0.5, 0.6], [0.625, 0.725], ["2", "+12.50", "the same with all 2 seeds: no interval"]),
    ],
)
def test_pairs_are_of_seeds_that_both_have(a: list[float], b: list[float], said: list[str] | None, tmp_path: Path) -> None:
    given = fill(tmp_path, {"A": a, "B": b})
    assert (
        [row[2 : 2 + len(said or ())] for row in differences(given)] == ([said] if said else [])
        if said
        else not given.comparisons("")
    )


def test_each_row_has_its_own_partner(tmp_path: Path) -> None:
    given = fill(tmp_path, {"A": A, "B": B, "A+": B, "B+": A}, against={"A+": "A", "B+": "B"})
    assert {row: found.against for row, found in given.comparisons("").items()} == {"B": "A", "A+": "A", "B+": "B"}
    assert given.comparisons("")["B+"].difference.mean == pytest.approx(-2)


@pytest.mark.parametrize(
    ("metric", "scores", "shown"),
    [
        ("test/loss", [0.43534, 0.33291], ["0.4353", "-0.1024"]),
        ("test/accuracy", [0.43534, 0.33291], ["43.53", "-10.24"]),
    ],
)
def test_small_losses_have_four_decimals(metric: str, scores: list[float], shown: list[str], tmp_path: Path) -> None:
    plan = table(tmp_path, seeds=[0, 1], rows=dict.fromkeys("ABC"[: len(scores)]))
    results = [result(row, seed, score, metric=metric) for row, score in zip("ABC", scores, strict=False) for seed in (0, 1)]
    given = ResultTable(plan, results)
    places = len(shown[0].partition(".")[2])
    assert cells(text(given, []))[1][1] == f"{shown[0]} ± {0:.{places}f}" and differences(given)[0][:4] == [
        "B",
        "A",
        "2",
        shown[1],
    ]


# Verdicts -----------------------------------------------------------------------------------------------------------------------------


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
        (60.5, None, "no margin"),
    ],
)
def test_a_figure_is_judged_by_two_one_sided_tests(published: Any, margin: Any, mark: str, tmp_path: Path) -> None:
    given = fill(tmp_path, {"A": [0.599, 0.6, 0.601]}, published={"A": {"": published}}, margin=margin, **RULE)
    assert marks(given) == [paper(given)[0][-1]] == [mark]


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
    figures = {"A": {"": 60.0}, "B": {"": published}}
    first = verdicts(fill(tmp_path, {"A": [0.5999, 0.6, 0.6001], "B": b}, published=figures, margin=2, **RULE))[0]
    assert (first.row, first.quantity, first.mark) == ("B", "gain", mark)


@pytest.mark.parametrize(
    ("b", "published", "shown", "mark"),
    [
        ([0.6204, 0.62, 0.6196], 2.05, "+2.05", "reproduced"),
        ([0.809, 0.81, 0.811], "14 to 20", "+14.00 to +20.00", "reproduced"),  # a gain of 21, within the margin of 2
        ([0.829, 0.83, 0.831], "14 to 20", "+14.00 to +20.00", "contradicted"),
        ([0.6, 0.6045, 0.609], "-0.75 to 0.75", "-0.75 to +0.75", "undecided"),
        ([0.609, 0.61, 0.611], "-0.75 to 0.75", "-0.75 to +0.75", "contradicted"),  # the range itself is the margin
    ],
)
def test_a_gain_may_be_a_range(b: list[float], published: Any, shown: str, mark: str, tmp_path: Path) -> None:
    given = fill(tmp_path, {"A": [0.5999, 0.6, 0.6001], "B": b}, published={"B": {"": {"gain": published}}}, margin=2, **RULE)
    assert (paper(given)[0][4], *marks(given)) == (shown, mark)


def test_gains_and_savings_over_another_row_are_neither_judged_nor_shown(tmp_path: Path) -> None:
    """C's published gain and saving are over A. Over B, only the gain between the paper's scores is known. D is compared with C."""
    figures = {"B": {"": 40}, "C": {"": {"score": 60, "gain": 10, "saved": 90}}, "D": {"": {"gain": 0.5}}}
    scores = {"A": [0.499, 0.5, 0.501], "B": [0.399, 0.4, 0.401], "C": [0.599, 0.6, 0.602], "D": [0.604, 0.605, 0.606]}
    given = fill(tmp_path, scores, published=figures, margin=2, against={"D": "C"}, **RULE)
    others = replace(given.table, against=dict.fromkeys(given.table.rows, "B"), whole=given.table)
    for plan in (select(given.table, ["B", "C", "D"]), others):
        found = ResultTable(plan, given.results)
        of_c = [verdict for verdict in verdicts(found) if (verdict.row, verdict.quantity) in (("C", "gain"), ("C", "saved"))]
        assert [(verdict.published.value, verdict.mark) for verdict in of_c] == [(20, "reproduced")]
        assert not in_view(found, "").loc["C", ["published gain", "published bytes saved"]].any()


def test_no_verdict_before_all_seeds_of_the_table(tmp_path: Path) -> None:
    rule: dict[str, Any] = {"margin": 9, "published": {row: {"": 50} for row in "ABC"}, **RULE}
    scores = verdicts(fill(tmp_path, {"A": [0.5, math.nan], "B": [0.6, 0.6], "C": [math.nan]}, **rule))
    assert [each.mark for each in scores if each.quantity == "score"] == ["with 1 of 3 seeds", "with 2 of 3 seeds", "not run"]
    (verdict,) = verdicts(fill(tmp_path, {"A": [0.6, 0.6, 0.6]}, **rule | {"published": {"A": {"": 60}}, "exploratory": [1]}))
    assert (verdict.mark, verdict.shown) == ("reproduced", "reproduced (exploratory)")


def test_verdicts_count_the_seeds_of_the_table_alone(tmp_path: Path) -> None:
    """Ten further seeds (``--seeds``) would narrow the intervals. One of them has diverged, another has other settings."""
    scores = {"A": [0.58, 0.6, 0.62], "B": [0.64, 0.7, 0.76]}
    planned = fill(tmp_path, scores, published={"A": {"": 60}, "B": {"": 70}}, margin=2, **RULE)
    more = [result(row, seed, values[1] + 0.001 * (seed % 2)) for row, values in scores.items() for seed in range(3, 13)]
    more = [{**one, "diverged": one["seed"] == 3, "other": "x" * (one["seed"] == 4)} for one in more]
    with_more = replace(planned.table, seeds=tuple(range(13)), whole=planned.table)
    assert (
        verdicts(ResultTable(with_more, [*planned.results, *more])) == verdicts(planned) and marks(planned) == ["undecided"] * 3
    )


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
        ([12], 12, "with one seed", "12"),
        ([None], 12, "with one seed", "> 100 (0 of 1 seeds reached it)"),
    ],
)
def test_rounds_to_a_target_are_compared_as_ratios(
    rounds: list[int | None], published: Any, mark: str, ours: str, tmp_path: Path
) -> None:
    figures, seeds = {"A": {"": {"rounds": published}}}, list(range(len(rounds)))
    plan = table(tmp_path, rows={"A": None}, published=figures, seeds=seeds, margin={"rounds": 1.25}, **RULE)
    found = [result("A", seed, targets={"a": Target(value, 10)} if value else {}) for seed, value in enumerate(rounds)]
    (line,) = paper(ResultTable(plan, found))
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
def test_the_papers_spread_and_the_splits_count(published: Any, more: dict[str, Any], mark: str, tmp_path: Path) -> None:
    """The interval is Welch's, with the paper's ± as known, and with our variance over splits once more for the paper's one split."""
    rule: dict[str, Any] = {"seeds": [0, 1, 2], "margin": {"rounds": 1.5}, **RULE, **more}
    plan, rounds = table(tmp_path, rows={"A": None}, published={"A": {"": {"rounds": published}}}, **rule), [18, 20, 22]
    (verdict,) = verdicts(
        ResultTable(plan, [result("A", seed, targets={"a": Target(value)}) for seed, value in enumerate(rounds)])
    )
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
        ([80], 92.5, "with one seed", "92.5 %"),
        ([None, None], 96, "undecided", "> 94.0 %"),
    ],
)
def test_bytes_saved_on_the_way_to_a_target(needed: list[Any], published: Any, mark: str, shown: str, tmp_path: Path) -> None:
    rule = {"seeds": list(range(len(needed))), "margin": {"saved": 1}, **RULE}
    plan = table(tmp_path, rows={"A": None, "B": None}, published={"B": {"": {"saved": published}}}, **rule)
    results = []
    for seed, rounds in enumerate(needed):
        results.append(result("A", seed, targets={"a": Target(rounds, 10 * rounds)} if rounds else {}))
        results.append(result("B", seed, targets={"a": Target(4, 60)}, spent=Target(100, 1020)))
    given = ResultTable(plan, results)
    (line,) = [row for row in paper(given) if row[1] == "bytes saved"]
    assert (line[2], line[-1]) == (shown, mark)
    saved, bound = in_view(given, "")["rounds and bytes saved"], "> " * (None in needed)
    assert saved["B"] == f"{bound}{statistics.fmean(value or 100 for value in needed) / 4:.1f}x, {shown}" and saved["A"] == ""


@pytest.mark.parametrize(("sent", "mark"), [(1000, "reproduced"), (1009, "reproduced"), (1020, "contradicted")])
def test_bytes_agree_within_one_per_cent_and_seconds_are_not_judged(sent: float, mark: str, tmp_path: Path) -> None:
    plan = table(tmp_path, rows={"A": None}, published={"A": {"": {"bytes": 1000, "seconds": 5}}}, seeds=[0, 1])
    assert marks(ResultTable(plan, [result("A", seed, total_bytes=sent, seconds=9.0) for seed in (0, 1)])) == [mark, "not judged"]


# LaTeX, and our tables ----------------------------------------------------------------------------------------------------------------


def test_latex_has_the_best_bold_and_the_second_underlined(tmp_path: Path) -> None:
    scores = {"A_1 & b": [0.5], "B": [0.7], "C": [0.7], "D": [math.nan]}
    said = latex(fill(tmp_path, scores, columns={"x": None, "100 %": None}, seeds=[0], title="50 % of A_1"))
    assert r"A\_1 \& b & \underline{50.00} & \underline{50.00} \\" in said and r" & x & 100 \% \\" in said
    assert r"B & \textbf{70.00} & \textbf{70.00} \\" in said and r"C & \textbf{70.00} & \textbf{70.00} \\" in said
    assert r"D & -- & -- \\" in said and r"\caption{50 \% of A\_1. Best evaluation; best in bold" in said and r"\toprule" in said
    losses = [result(row, 0, score, metric="test/loss") for row, score in (("A", 0.5), ("B", 0.25))]
    assert r"B & \textbf{0.2500}" in latex(ResultTable(table(tmp_path), losses)), "smaller losses are better"


def test_latex_ranks_no_bounds_and_no_nan(tmp_path: Path) -> None:
    plan = with_bounds(table(tmp_path, rows={"A": None, "B": None, "C": None}))
    scores = {"A": 0.5, "B": 0.25, "C": 0.1, "Centralized": 0.75, "Local": 0.375}
    results = [result(row, 0, score) for row, score in scores.items()]
    said = latex(
        ResultTable(plan, [{**one, **dict.fromkeys(SUMMARIES, math.nan)} if one["row"] == "C" else one for one in results])
    )
    assert r"A & \textbf{50.00}" in said and r"B & \underline{25.00}" in said and r"C & -- \\" in said
    assert r"Centralized & 75.00 \\" in said and r"Local & 37.50 \\" in said


def with_scores(plan: Table) -> ResultTable:
    """Results for the table whose scores equal the paper's on average over three seeds."""
    rng, results = np.random.default_rng(0), []
    for row, view, shift in itertools.product(plan.rows, plan.views, (-1.0, 0.0, 1.0)):
        figure = plan.published.get(row, {}).get(view, {}).get("score")
        results.append(
            result(row, int(shift) + 1, (figure.value if figure else 50) + shift + rng.normal(0, 0.01), view, seconds=1.0)
        )
    return ResultTable(plan, results)


@pytest.mark.slow
@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.stem)
def test_every_table_of_ours_is_reported(path: Path) -> None:
    """A published score is not contradicted if it is the mean of the seeds."""
    plan = replace(read_table(path), seeds=(0, 1, 2))
    given = with_scores(plan)
    judged: list[Verdict] = verdicts(given)
    said = text(given, judged)
    assert said.startswith(plan.title) and not re.search(r"\b(nan|inf)\b", said)
    found = [verdict.mark for verdict in judged if verdict.quantity == "score" and verdict.view in plan.views]
    assert "contradicted" not in found and "not run" not in found
    assert latex(given).count(r"\\") == len(plan.rows) + 1


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="there is no pdflatex")
def test_latex_compiles(tmp_path: Path) -> None:
    document = "\n\\clearpage\n".join(latex(with_scores(replace(read_table(path), seeds=(0, 1, 2)))) for path in TABLES)
    head = r"\documentclass{article}\usepackage{booktabs}"
    (tmp_path / "a.tex").write_text(rf"{head}\begin{{document}}{document}\end{{document}}")
    done = subprocess.run(["pdflatex", "-halt-on-error", "a.tex"], cwd=tmp_path, stdout=subprocess.PIPE, check=False)
    assert done.returncode == 0, done.stdout.decode(errors="replace")[-500:]
