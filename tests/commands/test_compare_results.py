"""The results of runs: scores, targets and costs, from their directories or from saved results; and the files and curves made of them."""

import csv
import math
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest

from commands.comparisons import QUICKSTART, fake_run, filled, real_run, table, table_file
from flcog.callbacks import FedCOG, FedProx
from flcog.commands.cli import main
from flcog.commands.compare.figure import curves, draw_curves
from flcog.commands.compare.report import numbers, text
from flcog.commands.compare.result_table import ResultTable
from flcog.commands.compare.results import record_of, result_of
from flcog.commands.compare.runs import Run, runs_of
from flcog.commands.compare.saved_results import results_of, write_results
from flcog.commands.compare.table import Figure, Table, View, read_table
from flcog.commands.compare.verdicts import verdicts
from flcog.core.monitor import Metric
from flcog.run.description import acting_rounds


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run("A", "x", 3, tmp_path / "run")


def came_to(run: Run, metric: str = "", last: int = 5, round: int | None = None, target: float | None = None) -> dict[str, Any]:
    record = record_of(run)
    assert record is not None
    return result_of(run, "x", View("x", Metric(metric) if metric else None, "best", round, target), record, last)


def scores(result: dict[str, Any]) -> dict[str, float]:
    return {name: result[name] for name in ("best", "last", "mean", "val") if name in result}


def test_the_scores_of_a_run(run: Run) -> None:
    fake_run(run, [0.1, 0.5, 0.3, 0.4])
    result = came_to(run, last=3)
    assert scores(result) == {"best": 0.5, "last": 0.4, "mean": pytest.approx(0.4)} and result["metric"] == "test/accuracy"
    assert (result["averaged"], result["deviation"], result["rounds"], result["finished"]) == (3, pytest.approx(0.1), 4, False)
    assert came_to(run, last=9)["averaged"] == 4 and came_to(run, round=1)["best"] == 0.1


def test_the_validation_set_chooses_a_round(run: Run) -> None:
    fake_run(
        run, [0.1, 0.5, 0.3], val__accuracy=[0.2, 0.4, 0.4], val__loss=[3, 2, 1], test__loss=[7, 8, 9], local__mean=[4, 5, 6]
    )
    assert came_to(run)["val"] == came_to(run, "test/accuracy")["val"] == 0.5, "of equally good rounds the first, as in best.ckpt"
    assert scores(came_to(run, "test/loss")) == {"best": 7, "last": 9, "mean": 8, "val": 9}, "by its own validation"
    assert came_to(run, "local/mean")["val"] == 5, "by the main one"
    fake_run(run, [float("nan"), 0.25, 0.125], val__accuracy=[float("nan")] * 3)
    assert scores(came_to(run, "test/accuracy")) == {"best": 0.25, "last": 0.125, "mean": pytest.approx(math.nan, nan_ok=True)}


def test_models_at_the_clients_are_compared_with_the_global_model_at_the_same_clients(tmp_path: Path) -> None:
    plan = table(tmp_path)
    runs = runs_of(plan, tmp_path / "out")
    for run in runs:
        own = {"test__personal_accuracy_mean": [0.75, 0.5], "val__personal_accuracy_mean": [0.25, 0.5]} if run.row == "A" else {}
        fake_run(run, [0.1, 0.1], finished=True, test__client_accuracy_mean=[0.3, 0.4], **own)
    for found in results_of(plan, runs, None):
        assert found["metric"] == "test/personal_accuracy_mean"
        assert scores(found) == (
            {"best": 0.75, "last": 0.5, "mean": 0.625, "val": 0.5}
            if found["row"] == "A"
            else {"best": 0.4, "last": 0.4, "mean": pytest.approx(0.35)}
        )


@pytest.mark.parametrize(
    ("metric", "shown"),
    [
        ("test/accuracy", "90.00"),
        ("test/nll", "0.9000"),  # a loss that is at most 1 by chance
        ({"metric": "test/foo", "mode": "min"}, "0.9000"),
    ],
)
def test_only_shares_are_shown_in_percent(metric: Any, shown: str, tmp_path: Path) -> None:
    name = metric if isinstance(metric, str) else metric["metric"]
    plan = table(tmp_path, rows={"A": None}, metrics={"m": metric})
    (one,) = runs_of(plan, tmp_path / "out")
    fake_run(one, [0.9], finished=True, **{name.replace("/", "__"): [0.9]})
    said = text(filled(plan, [one]), [])
    assert f"| A | {shown} | {shown} | {shown} |" in said
    assert f"Scores are {name}, {'in percent' if shown == '90.00' else 'as logged'}." in said


def test_a_table_may_say_that_smaller_values_are_better(tmp_path: Path) -> None:
    plan = table(tmp_path, metrics={"": {"metric": "test/foo", "mode": "min"}}, columns={"x": {"target": 0.5}})
    runs = runs_of(plan, tmp_path / "out")
    for run in runs:
        low = [2.0, 0.25, 3.0] if run.row == "A" else [3.0, 1.0, 2.0]
        fake_run(run, [0.5] * 3, finished=True, test__foo=low, val__foo=[1.0, 9.0, 0.5])
    given = filled(plan, runs)
    assert given.scores("A", "x", "best").to_dict() == {0: 0.25} and given.scores("A", "x", "val").to_dict() == {0: 3.0}
    assert {run.row: {name: found.rounds for name, found in run.targets.items()} for run in given.frame.itertuples()} == {
        "A": {"foo_0.5": pytest.approx(1 + 1.5 / 1.75)},
        "B": {},
    }


def test_the_first_metric_chooses_the_round_of_all(tmp_path: Path) -> None:
    plan = table(tmp_path, metrics={"mean": "test/personal_accuracy_mean", "worst": "test/personal_accuracy_worst_decile"})
    runs = runs_of(plan, tmp_path / "out")
    for run in runs:
        columns = {
            f"val__personal_accuracy_{of}": scores for of, scores in {"mean": [1, 3, 2], "worst_decile": [3, 1, 2]}.items()
        }
        columns |= {f"test__personal_accuracy_{of}": [0.1, 0.2, 0.3] for of in ("mean", "worst_decile")}
        fake_run(run, [0.5] * 3, finished=True, **columns)
    given = filled(plan, runs)
    assert {given.scores("A", view, "val")[0] for view in given.views} == {20.0}


@pytest.mark.parametrize(
    ("methods", "rounds"),
    [
        ([], [1, 70]),
        ([FedProx(mu=0.1), FedCOG(start_round=50)], [51, 70]),
        ([FedProx(mu=0.1, stop_round=60), FedCOG(start_round=50)], [51, 60]),
        # The methods never act together, or do not act in this run.
        ([FedProx(mu=0.1, stop_round=40), FedCOG(start_round=50)], [1, 70]),
        ([FedCOG(start_round=70)], [1, 70]),
    ],
)
def test_rounds_in_which_all_methods_act(methods: list[Any], rounds: list[int]) -> None:
    assert acting_rounds(methods, 70) == rounds


def test_costs_and_origin(run: Run) -> None:
    """One round in five is slow, which the median time of a round would not show."""
    directory = fake_run(run, [0.1] * 5, time__round=[1.0, 1.0, 1.0, 1.0, 9.0], comm__total_bytes=[10, 20, 30, 40, 50])
    assert (came_to(run)["seconds"], came_to(run)["acting_seconds"]) == (13, 2.6)
    (directory / "run.yaml").write_text("{acting_rounds: [5, 5], flcog_commit: abc, git_commit: def+changes}")
    facts = came_to(run)
    assert (facts["seconds"], facts["acting_seconds"], facts["commit"], facts["own_commit"]) == (13, 9, "abc", "def+changes")
    assert (facts["up_bytes"], facts["total_bytes"], facts["date"]) == (5 * 512, 50, "2026-01-01")


# Targets ------------------------------------------------------------------------------------------------------------------------------


def test_the_curve_that_crosses_a_target_is_monotone_and_interpolated(run: Run) -> None:
    """The best accuracies so far are 0.2, 0.6, 0.6, 1.0 in rounds 1 to 4, so 0.8 is reached half-way between rounds 3 and 4."""
    fake_run(run, [0.2, 0.6, 0.4, 1.0], comm__total_bytes=[10, 20, 30, 40], test__loss=[math.inf, 0.25, 0.1, 0.1])
    for target, metric, expected in (
        (0.8, "test/accuracy", (3.5, 35)),
        (0.1, "test/accuracy", (1, 10)),
        (0.5, "test/loss", (2, 20)),
    ):
        (found,) = came_to(run, metric, target=target)["targets"].values()
        assert found[:2] == pytest.approx(expected)
    assert came_to(run, target=1.1)["targets"] == {} and came_to(run, target=1.1)["asked"] == "accuracy_1.1"


def test_a_target_counts_within_the_rounds_of_its_column(run: Run) -> None:
    """The run reaches 0.8 in round 4, and ``RoundsToTarget`` notes it there. Columns that end before have missed it."""
    noted: dict[str, Any] = {
        f"to_accuracy_0.75/{name}": ["", "", "", value, ""] for name, value in {"rounds": 4, "simulated": 7.5}.items()
    }
    fake_run(run, [0.2, 0.4, 0.6, 1.0, 1.0], comm__total_bytes=[10, 20, 30, 40, 50], **noted)
    for last in (None, 4, 9):
        result = came_to(run, round=last, target=0.8)
        found = result["targets"]
        assert found["accuracy_0.8"][:2] == pytest.approx((3.5, 35)) and found["accuracy_0.75"].rounds == 4
        assert found["accuracy_0.75"].simulated == 7.5 and result["spent"][:2] == ((4, 40) if last == 4 else (5, 50))
    short = came_to(run, round=3, target=0.8)
    assert (short["targets"], short["spent"][:2], short["rounds"]) == ({}, (3, 30), 5)


def test_a_missed_target_is_a_bound_and_private_runs_withhold_bytes(tmp_path: Path) -> None:
    plan = table(tmp_path, rows={"A": None, "B": None, "C": None}, columns={"x": {"target": 0.8}}, seeds=[0, 1])
    runs = runs_of(plan, tmp_path / "out")
    for run in runs[:4]:
        fake_run(
            run, [0.2, 0.8 if run.row == "A" or run.seed else 0.6], comm__total_bytes=[10, 20] if run.row == "A" else ["", ""]
        )
    said = text(filled(plan, runs), [])
    assert "rounds to accuracy_0.8" in said and "| 2 (20 B) |" in said and "| > 2 (1 of 2 seeds reached it) |" in said
    missed = filled(plan, [run for run in runs if run.row == "B" and run.seed == 0])
    assert "| > 2 (0 of 1 seeds reached it) |" in text(missed, []), "also where no run has reached it"


# Runs that have diverged --------------------------------------------------------------------------------------------------------------


def test_a_diverged_run_counts_with_its_last_score(tmp_path: Path) -> None:
    plan = table(tmp_path, seeds=[0, 1], published={"B": {"": 50}})
    runs = runs_of(plan, tmp_path / "out")
    for run in runs:
        bad = run.row == "B" and run.seed == 1
        fake_run(run, [0.5, 0.25 if bad else 0.75], finished=True, test__loss=[1, float("nan") if bad else 1])
    given = filled(plan, runs)
    assert given.scores("B", "", "best").to_dict() == {0: 75, 1: 25} and given.comparisons("") == {}
    said = text(given, verdicts(given))
    assert "50.00 ± 35.36 (1 of 2 diverged)" in said and "Diverged, counted with the last score" in said
    assert [verdict.mark for verdict in verdicts(given)] == ["diverged"]


def test_a_run_that_diverges_in_round_1_counts_as_diverged(tmp_path: Path) -> None:
    """Its model has no score. Without a word on it, the table would show the mean over the seeds that survived, and their difference."""
    plan = table(
        tmp_path, columns={"x": None, "y": None}, overall={"mean": "mean"}, seeds=[0, 1, 2], published={"B": {"x": {"rounds": 5}}}
    )
    runs = runs_of(plan, tmp_path / "out")
    for run in runs:
        directory = fake_run(run, [0.5, 0.75], finished=True)
        if (run.row, run.column, run.seed) == ("B", "x", 1):
            (directory / "metrics.csv").unlink()
            (directory / "run.yaml").write_text("seed: 1\n")
            run.mark_finished(diverged=True)
    saved = tmp_path / "saved.csv"
    assert write_results(saved, plan, runs) == 12
    live = results_of(plan, runs, None)
    shutil.rmtree(tmp_path / "out")
    for results in (live, results_of(plan, runs, saved)):
        given = ResultTable(plan, results)
        assert given.comparisons("x") == given.comparisons("mean") == {} and given.comparisons("y")["B"].difference.count == 3
        said = text(given, verdicts(given))
        (line,) = [line for line in said.splitlines() if line.startswith("| B | 75.00")][:1]
        assert line.count("(1 of 3 diverged) (n = 2)") == 2, "in x and in the mean"
        assert [verdict.mark for verdict in verdicts(given)] == ["diverged"]
        assert "not judged and in no gain: B · x · seed 1" in said


def test_all_columns_together(tmp_path: Path) -> None:
    plan = table(tmp_path, columns={"x": None, "y": None}, overall={"mean": "mean", "worst": "worst"})
    runs = runs_of(plan, tmp_path / "out")
    for run in runs:
        fake_run(run, [0.5 if run.column == "x" else 0.75], finished=True)
    given = filled(plan, runs)
    assert given.scores("A", "mean").to_dict() == {0: 62.5} and given.scores("A", "worst").to_dict() == {0: 50}
    for run in runs:
        if run.column == "y":
            next(run.folder.glob("*/metrics.csv")).write_text("round,test/mse\n1,9.0\n2,4.0\n")
    mixed = filled(plan, runs)
    assert len(mixed.scores("A", "mean")) == 0
    assert "There is no mean and no worst, because the main metrics of the columns differ." in text(mixed, [])


# Saved results ------------------------------------------------------------------------------------------------------------------------


def quickstart(folder: Path, **content: Any) -> Table:
    return read_table(table_file(folder, configs=[QUICKSTART], rows={"A": None, "B": None}, **content))


@pytest.mark.slow
def test_saved_results_are_read_where_the_runs_are_gone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, out, saved = table_file(tmp_path, seeds=[5, 6]), tmp_path / "out", tmp_path / "results"
    runs = runs_of(replace(read_table(path), seeds=(0, 5, 6)), out)
    for place, run in enumerate(runs):
        unfinished = run.row == "B" and run.seed == 6
        fake_run(run, [0.1, 0.25 + place / 8], finished=not unfinished, val__accuracy=[0.5, 0.25])
    command = ["compare", str(path), "--out", str(out), "--results", str(saved), "--show"]
    main([*command, "--save-results"])
    shown = capsys.readouterr().out
    assert f"3 finished runs saved in {saved / 'table.csv'}" in shown and "to save them, add --seeds 0" in shown
    lines = list(csv.DictReader((saved / "table.csv").open()))
    assert [(line["row"], line["seed"], line["round"], line["test/accuracy"], line["val/accuracy"]) for line in lines] == [
        *(("A", seed, "1 2", f"0.1 {last}", "0.5 0.25") for seed, last in (("5", 0.375), ("6", 0.5))),
        ("B", "5", "1 2", "0.1 0.75", "0.5 0.25"),
    ]
    main([*command, "--save-results", "--seeds", "0"])
    assert {line["seed"] for line in csv.DictReader((saved / "table.csv").open())} == {"0", "5", "6"}
    shutil.rmtree(out)
    capsys.readouterr()
    main(command)
    again = capsys.readouterr().out
    rows = [line for line in shown.splitlines() if line.startswith("| A |")]
    assert rows and set(rows) <= set(again.splitlines())
    # Saving some runs again keeps the others.
    fake_run(runs[0], [0.9], finished=True)
    main([*command, "--save-results", "--seeds", "0"])
    assert [line["round"] for line in csv.DictReader((saved / "table.csv").open())] == ["1", "1 2", "1 2", "1 2", "1 2"]


def test_saved_results_redraw_the_table(tmp_path: Path) -> None:
    plan, saved = quickstart(tmp_path), tmp_path / "saved.csv"
    runs = runs_of(plan, tmp_path / "out")
    for run in runs:
        real_run(run)
    assert write_results(saved, plan, runs) == 2
    live = filled(plan, runs)
    shutil.rmtree(tmp_path / "out")
    again = filled(plan, runs, saved)
    assert text(again, []) == text(live, []) and [row["test/loss"] for row in again.frame.history.iloc[0]] == [1.5, 0.75]
    changed = runs_of(quickstart(tmp_path, arguments={"trainer.rounds": 9}), tmp_path / "out")
    with pytest.raises(
        ValueError, match=r"A · seed 0 was trained with 'quickstart', and the table states 'quickstart trainer.rounds=9': delete"
    ):
        results_of(plan, changed, saved)
    for run in runs:  # runs with other settings are not saved
        real_run(run, "--trainer.rounds", "7")
    assert write_results(tmp_path / "none.csv", plan, runs) == 0 and not (tmp_path / "none.csv").exists()


def test_saved_results_replace_unfinished_runs_and_runs_with_other_settings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan, saved = quickstart(tmp_path), tmp_path / "saved.csv"
    runs = runs_of(plan, tmp_path / "out")
    for run in runs:
        real_run(run)
    write_results(saved, plan, runs)

    def shown(extra: list[str]) -> list[float]:
        return [result["last"] for result in results_of(plan, runs_of(plan, tmp_path / "out", extra), saved)]

    changes = ["--trainer.rounds", "7"]
    for run in runs:
        real_run(run, *changes, test__accuracy=[0.1, 0.75])
    assert shown([]) == [0.5, 0.5] and "shows A · seed 0, whose own run" in capsys.readouterr().err
    assert shown(changes) == [0.75, 0.75], "the command asks for these settings"
    for run in runs:
        real_run(run, test__accuracy=[0.1, 0.75])
    (runs[0].folder / "finished").unlink()
    assert shown([]) == [0.5, 0.75]


@pytest.mark.parametrize(("metric", "chooser", "best"), [("test/f1", "val/mse", 0.7), ("test/f1", "val/f1", 0.9)])
def test_saved_results_keep_the_metric_that_chooses_a_round(metric: str, chooser: str, best: float, tmp_path: Path) -> None:
    plan, saved = quickstart(tmp_path, metrics=metric), tmp_path / "saved.csv"
    runs = runs_of(plan, tmp_path / "out")
    for run in runs:
        real_run(run)
        path = next(run.folder.glob("*/metrics.csv"))
        path.write_text(f"round,time/round,{metric},{chooser}\n1,1,0.5,3\n2,1,0.9,{2 if best == 0.7 else 5}\n3,1,0.7,1\n")
    write_results(saved, plan, runs)
    shutil.rmtree(tmp_path / "out")
    assert [result["val"] for result in results_of(plan, runs, saved)] == [best, best]


# Settings -----------------------------------------------------------------------------------------------------------------------------


def test_settings_are_what_the_command_states(tmp_path: Path) -> None:
    """An option of the row or of the user's own makes another run. A folder or a device does not."""
    plan = table(tmp_path, configs=[QUICKSTART], rows={"A": None})
    (run,) = runs_of(plan, tmp_path / "out")
    real_run(run, "--data.data_dir", "/x", "--trainer.accelerator", "cpu")
    assert came_to(run)["other"] == ""
    changes = ("--model.optimizer.lr", "0.5")
    for asked in (replace(run, words=(*run.words, *changes)), replace(run, extra=changes)):
        with pytest.raises(ValueError, match=r"other settings \(quickstart instead of quickstart model.optimizer.lr=0.5\)"):
            asked.check()
    real_run(run, "--trainer.rounds", "7")
    given = filled(replace(plan, published={"A": {"": {"score": Figure(50)}}}), [run])
    assert "not judged: quickstart trainer.rounds=7 instead of quickstart (A · seed 0)" in text(given, []), "and it is not saved"


# Files and curves ---------------------------------------------------------------------------------------------------------------------


def test_the_csv_holds_numbers(tmp_path: Path) -> None:
    plan = table(tmp_path, columns={"x": {"target": 0.5}}, seeds=[0, 1])
    runs = runs_of(plan, tmp_path / "out")
    for run in runs:
        fake_run(run, [0.25, 0.5 + run.seed / 8], finished=True, comm__total_bytes=[10, 20])
    main(["compare", str(tmp_path / "table.yaml"), "--out", str(tmp_path / "out"), "--show"])
    found = pandas.read_csv(tmp_path / "out/table.csv").set_index("row").loc["A"]
    assert (found.column, found.seeds, found.best, found.best_std) == ("x", 2, 56.25, pytest.approx(12.5 / math.sqrt(2)))
    assert (found.seconds, found.total_bytes) == (2, 20) and found["rounds_to_accuracy_0.5"] == pytest.approx((2 + 1 + 2 / 3) / 2)
    fake_run(runs[1], [0.25, 0.25], finished=True)
    assert numbers(filled(plan, runs)).set_index("row")["rounds_to_accuracy_0.5"].isna()["A"], "one seed missed it"
    differences = pandas.read_csv(tmp_path / "out/differences.csv")
    assert differences[["row", "column", "against", "seeds", "difference"]].values.tolist() == [["B", "x", "A", 2, 0.0]]
    assert not (tmp_path / "out/paper.csv").exists() and len(numbers(filled(plan, runs))) == 2


def test_curves_are_means_with_their_intervals(tmp_path: Path) -> None:
    plan = table(tmp_path, seeds=[0, 1, 2])
    runs = runs_of(plan, tmp_path / "out")
    series = {0: [0.2, 0.4, 0.9], 1: [0.4, 0.8], 2: [0.3, 0.6]}
    for run in runs:
        values = series[run.seed]
        sent = np.arange(1, len(values) + 1) * (1e6 if run.row == "A" else 2e6)
        fake_run(run, values, time=3.0, comm__total_bytes=sent)
    given = filled(plan, runs)
    curve = curves(given, "", "rounds")["A"]
    assert curve.x.tolist() == [1, 2, 3] and curve["mean"].tolist() == pytest.approx([30, 60, 90])
    half = 4.302653 * np.array([10, 20]) / math.sqrt(3)
    assert (curve["mean"] - curve.low)[:2].tolist() == pytest.approx(half)
    assert curve.high[:2].tolist() == pytest.approx([30 + half[0], 100])  # no share exceeds 100 %
    assert math.isnan(curve.low[3])
    assert curves(given, "", "bytes")["B"].x.tolist() == [2, 4, 6] and curves(given, "", "seconds")["A"].x.tolist() == [3, 6, 9]
    png, pdf = draw_curves(given, tmp_path, "bytes")
    assert png.read_bytes()[:4] == b"\x89PNG" and pdf.read_bytes()[:4] == b"%PDF"
    assert draw_curves(filled(plan, []), tmp_path, "rounds") == []
