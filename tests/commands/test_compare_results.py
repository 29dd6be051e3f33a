"""The results of a run: its scores, the rounds where all methods act, and results that are kept after its directory is deleted."""

import csv
import json
import math
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from harness import ROOT

from commands.test_compare import fake_run, plan_file
from flcog.callbacks import FedCOG, FedProx
from flcog.commands.cli import main
from flcog.commands.compare.facts import facts_of
from flcog.commands.compare.folder import OUTPUT
from flcog.commands.compare.latex import latex
from flcog.commands.compare.plan import Cell, apart, cells
from flcog.commands.compare.report import text
from flcog.commands.compare.resolved import digest, resolved
from flcog.commands.compare.result_table import ResultTable
from flcog.commands.compare.results import Result, percent_scale, result_of
from flcog.commands.compare.saved_results import read_results, results_of, write_results
from flcog.commands.compare.savings import saving
from flcog.commands.compare.settings_of_runs import check_settings, table_settings
from flcog.commands.compare.table import in_setting, summarise
from flcog.commands.compare.table_csv import write_csv
from flcog.commands.compare.table_file import read_table
from flcog.commands.compare.training import conclude
from flcog.commands.compare.verdicts import verdicts
from flcog.run.description import acting_rounds


@pytest.fixture
def cell(tmp_path: Path) -> Cell:
    return Cell("A", "x", 3, tmp_path / "cell", [])


def came_to(cell: Cell, metric: str | None = None, last: int = 5) -> Result:
    assert cell.run is not None
    cell = replace(cell, metric=metric or cell.metric)
    return result_of(cell, cell.history(), facts_of(cell, cell.run), last, cell.finished)


def test_the_scores_of_a_run(cell: Cell) -> None:
    fake_run(cell, [0.1, 0.5, 0.3, 0.4])
    result = came_to(cell, last=3)
    assert result.scores == {"best": 0.5, "last": 0.4, "mean": pytest.approx(0.4)} and result.metric == "test/accuracy"
    assert (result.averaged, result.deviation, result.rounds, result.finished) == (3, pytest.approx(0.1), 4, False)
    assert came_to(cell, last=9).averaged == 4


def test_the_validation_set_chooses_a_round(cell: Cell) -> None:
    fake_run(cell, [0.1, 0.5, 0.3], val__accuracy=[0.2, 0.3, 0.4], val__loss=[1, 3, 2])
    assert came_to(cell).scores["val"] == 0.3
    assert came_to(cell, "test/accuracy").scores["val"] == 0.3
    # Of equally good rounds, the first one counts, as in best.ckpt.
    shutil.rmtree(cell.folder)
    fake_run(cell, [0.1, 0.5, 0.3], val__accuracy=[0.2, 0.4, 0.4])
    assert came_to(cell).scores["val"] == 0.5


def test_another_metric_is_chosen_by_its_own_validation_or_the_main_one(cell: Cell) -> None:
    fake_run(
        cell, [0.1, 0.5, 0.3], val__accuracy=[0.9, 0.3, 0.4], val__loss=[3, 2, 1], test__loss=[7, 8, 9], local__mean=[4, 5, 6]
    )
    assert came_to(cell, "test/loss").scores == {"best": 7, "last": 9, "mean": 8, "val": 9}
    assert came_to(cell, "local/mean").scores["val"] == 4


def test_errors_are_best_where_they_are_small(cell: Cell) -> None:
    fake_run(cell, [0.0] * 3, time__error=[0.5, 0.25, 0.75], test__accuracy_std=[0.2, 0.3, 0.4])
    error, spread = came_to(cell, "time/error"), came_to(cell, "test/accuracy_std")
    assert error.scores["best"] == 0.25 and percent_scale([error]) == 1
    # The spread of accuracies is shown in percentage points.
    assert spread.scores["best"] == 0.2 and percent_scale([spread]) == 100


@pytest.mark.parametrize(("metric", "scale"), [("test/r2", 1), ("local/cosine", 1), ("test/macro-AP", 100), ("test/hits", 100)])
def test_only_shares_are_shown_in_percent(cell: Cell, metric: str, scale: int) -> None:
    fake_run(cell, [0.0] * 2, **{metric.replace("/", "__"): [0.5, 0.25]})
    assert percent_scale([came_to(cell, metric)]) == scale


def test_no_score_is_no_best_one(cell: Cell) -> None:
    fake_run(cell, [float("nan"), 0.25, 0.125], val__accuracy=[float("nan")] * 3)
    scores = came_to(cell, "test/accuracy").scores
    assert scores["best"] == 0.25 and "val" not in scores, "no validation chose a round"


@pytest.mark.parametrize(
    ("methods", "rounds"),
    [
        ([], [1, 70]),
        ([FedProx(mu=0.1)], [1, 70]),
        ([FedProx(mu=0.1), FedCOG(start_round=50)], [51, 70]),
        ([FedProx(mu=0.1, stop_round=60), FedCOG(start_round=50)], [51, 60]),
        # The methods never act together, or do not act in this run.
        ([FedProx(mu=0.1, stop_round=40), FedCOG(start_round=50)], [1, 70]),
        ([FedCOG(start_round=70)], [1, 70]),
    ],
)
def test_rounds_in_which_all_methods_act(methods: list[Any], rounds: list[int]) -> None:
    assert acting_rounds(methods, 70) == rounds


def test_time_is_the_total_and_that_of_acting_rounds(cell: Cell) -> None:
    """One round in five is slow, which the median time of a round would not show."""
    run = fake_run(cell, [0.1] * 5, time__round=[1.0, 1.0, 1.0, 1.0, 9.0], comm__total_bytes=[10, 20, 30, 40, 50])
    assert (came_to(cell).facts.seconds, came_to(cell).facts.acting_seconds) == (13, 2.6)
    (run / "run.yaml").write_text("{acting_rounds: [5, 5], flcog_commit: abc}")
    facts = came_to(cell).facts
    assert (facts.seconds, facts.acting_seconds, facts.commit) == (13, 9, "abc")
    assert (facts.up_bytes, facts.total_bytes) == (5 * 512, 50)
    (run / "run.yaml").write_bytes(b"\xff")
    assert came_to(cell).facts.acting_seconds == 2.6


@pytest.mark.parametrize(
    ("class_path", "is_own"), [("mine.SignGate", True), ("flcog.callbacks.FedProx", False), ("torch.nn.Sum", False)]
)
def test_the_commit_of_own_code_is_that_of_the_working_directory(cell: Cell, class_path: str, is_own: bool) -> None:
    run = fake_run(cell, [0.1])
    (run / "run.yaml").write_text("git_commit: abc+changes")
    (run / "config.yaml").write_text(yaml.safe_dump({"trainer": {"callbacks": [{"class_path": class_path}]}}))
    assert came_to(cell).facts.own_commit == ("abc+changes" if is_own else "")


def test_times_under_other_load_are_marked(tmp_path: Path) -> None:
    plan = read_table(plan_file(tmp_path, rows={"A": None, "B": None}))
    runs = cells(plan, tmp_path / "out", [])
    for cell, share in zip(runs, (0.0, 0.4), strict=True):
        fake_run(cell, [0.5, 0.6], finished=True, time__waiting_share=[share] * 2)
    results = results_of(plan, runs, None)
    write_results(tmp_path / "saved.csv", plan, runs)
    shutil.rmtree(tmp_path / "out")
    for found in (results, results_of(plan, runs, tmp_path / "saved.csv")):
        said = text(ResultTable(plan, found), "std")
        marked = [line[:3] for line in said.splitlines() if "†" in line and line.startswith("|")]
        assert marked == ["| B"] and "for a core: B · seed 0 (40 %)" in said


def test_of_many_slowed_runs_the_slowest_are_named(tmp_path: Path) -> None:
    plan = read_table(plan_file(tmp_path, rows=dict.fromkeys("ABCDEFG")))
    runs = cells(plan, tmp_path / "out", [])
    for cell, share in zip(runs, (0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8), strict=True):
        fake_run(cell, [0.5, 0.6], finished=True, time__waiting_share=[share] * 2)
    said = text(ResultTable(plan, results_of(plan, runs, None)), "std")
    assert "for a core: G · seed 0 (80 %); F" in said and "; C · seed 0 (40 %); and 2 other runs less. Do not" in said


@pytest.mark.slow
def test_saved_results_are_read_where_the_runs_are_gone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, out, saved = plan_file(tmp_path, seeds=[0, 1]), tmp_path / "out", tmp_path / "results"
    runs = cells(read_table(path), out, [])
    for place, cell in enumerate(runs):
        unfinished = cell.row == "B" and cell.seed == 1
        fake_run(cell, [0.1, 0.25 + place / 8], finished=not unfinished, val__accuracy=[0.5, 0.25])
    command = ["compare", str(path), "--out", str(out), "--results", str(saved), "--show"]
    main([*command, "--save-results"])
    shown = capsys.readouterr().out
    assert f"3 finished runs saved in {saved / 'table.csv'}" in shown
    lines = list(csv.DictReader((saved / "table.csv").open()))
    assert [(line["row"], line["seed"], line["round"], line["test/accuracy"], line["val/accuracy"]) for line in lines] == [
        *(("A", seed, "1 2", f"0.1 {last}", "0.5 0.25") for seed, last in (("0", 0.25), ("1", 0.375))),
        ("B", "0", "1 2", "0.1 0.5", "0.5 0.25"),
    ]
    shutil.rmtree(out)
    main(command)
    again = capsys.readouterr().out
    scores = [line for line in shown.splitlines() if line.startswith("| A |")]
    assert scores and set(scores) <= set(again.splitlines())
    # Saving some runs again keeps the others.
    fake_run(runs[0], [0.9], finished=True)
    main([*command, "--save-results", "--seeds", "0"])
    assert [line["round"] for line in csv.DictReader((saved / "table.csv").open())] == ["1", "1 2", "1 2"]


def test_seeds_that_the_table_does_not_name_are_saved_only_on_request(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, out, saved = plan_file(tmp_path, seeds=[5, 6]), tmp_path / "out", tmp_path / "results"
    for cell in cells(replace(read_table(path), seeds=(0, 5, 6)), out, []):
        fake_run(cell, [0.25, 0.5], finished=True)
    command = ["compare", str(path), "--out", str(out), "--results", str(saved), "--show", "--save-results"]

    def saved_seeds() -> set[str]:
        return {line["seed"] for line in csv.DictReader((saved / "table.csv").open())}

    main(command)
    assert saved_seeds() == {"5", "6"}
    assert f"seeds in {out} that the table does not name are not saved; to save them, add --seeds 0" in capsys.readouterr().out
    main([*command, "--seeds", "0"])
    assert saved_seeds() == {"0", "5", "6"}
    assert "not saved" not in capsys.readouterr().out


QUICKSTART = str(ROOT / "configs/quickstart.yaml")


def real_run(cell: Cell, *changes: str) -> None:
    """Write a finished run whose configuration comes from the cell's command line with these changes."""
    run = fake_run(cell, [0.25, 0.5], finished=True, test__loss=[1.5, 0.75])
    config = resolved(cell, [*cell.common_arguments, *changes])
    (run / "config.yaml").write_text(yaml.safe_dump(json.loads(json.dumps(config))))


def a_table(folder: Path, **content: Any) -> Path:
    return plan_file(folder, configs=[QUICKSTART], rows={"A": None, "B": None}, **content)


@pytest.mark.slow
def test_settings_are_compared_by_content(tmp_path: Path) -> None:
    """A changed number in a config, a default or a column makes another cell. A changed comment or folder does not."""
    (tmp_path / "own.yaml").write_text("model: {init_args: {optimizer: {init_args: {lr: 0.01}}}}\n")
    table = read_table(plan_file(tmp_path, configs=[QUICKSTART, "own.yaml"], rows={"A": None}))
    (cell,) = cells(table, tmp_path / "out", [])
    real_run(cell, "--trainer.default_root_dir", "/x")
    assert came_to(cell).facts.other == "" and came_to(cell).facts.settings == digest(table_settings(cell))
    (moved,) = cells(table, tmp_path / "out", ["--trainer.rounds", "9"])
    assert came_to(moved).facts.other == "trainer.rounds 20 instead of 9, given after --", "the command asks for other runs"
    (elsewhere,) = cells(table, tmp_path / "out", ["--trainer.accelerator", "cpu", "--trainer.rounds", "20"])
    assert came_to(elsewhere).facts.other == ""
    other = replace(cell, common_arguments=[*cell.common_arguments, "--model.optimizer.lr", "0.5"])
    assert came_to(other).facts.other == "model.optimizer.lr 0.01 instead of 0.5"
    with pytest.raises(ValueError, match=r"holds this arm with other settings \(model.optimizer.lr 0.01 instead of 0.5\)"):
        check_settings(other)


def test_saved_results_redraw_the_table(tmp_path: Path) -> None:
    path, saved = a_table(tmp_path), tmp_path / "saved.csv"
    table = read_table(path)
    runs = cells(table, tmp_path / "out", [])
    for cell in runs:
        real_run(cell)
    assert write_results(saved, table, runs) == 2
    results = results_of(table, runs, None)
    shutil.rmtree(tmp_path / "out")
    again = results_of(table, runs, saved)
    assert text(ResultTable(table, again), "std") == text(ResultTable(table, results), "std")
    assert [result.scores for result in again] == [result.scores for result in results]
    assert [row["test/loss"] for row in again[0].history] == [1.5, 0.75]
    changed = cells(read_table(a_table(tmp_path, arguments={"trainer.rounds": 9})), tmp_path / "out", [])
    with pytest.raises(ValueError, match=r"saved.csv, row 2: its settings '\w+' are not the table's"):
        results_of(table, changed, saved)
    # Runs with other settings are not saved.
    for cell in runs:
        real_run(cell, "--trainer.rounds", "7")
    assert write_results(tmp_path / "none.csv", table, runs) == 0 and not (tmp_path / "none.csv").exists()


def test_saved_results_replace_unfinished_runs_and_runs_with_other_settings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table, saved, short = read_table(a_table(tmp_path)), tmp_path / "saved.csv", ["--trainer.rounds", "7"]
    runs = cells(table, tmp_path / "out", [])
    for cell in runs:
        real_run(cell)
    write_results(saved, table, runs)

    def shown(extra: list[str]) -> list[float]:
        return [result.scores["last"] for result in results_of(table, cells(table, tmp_path / "out", extra), saved)]

    for cell in runs:
        shutil.rmtree(cell.folder)
        real_run(cell, *short)
        path = next(cell.folder.glob("*/metrics.csv"))
        path.write_text(path.read_text().replace("0.5", "0.75"))
    assert shown([]) == [0.5, 0.5] and "A · seed 0 and 1 more is shown" in capsys.readouterr().err
    assert shown(short) == [0.75, 0.75] and capsys.readouterr().err == "", "the command asks for these settings"
    for cell in runs:
        shutil.rmtree(cell.folder)
        real_run(cell)
    (runs[0].folder / "finished").unlink()
    path = next(runs[0].folder.glob("*/metrics.csv"))
    path.write_text(path.read_text().replace("0.5", "0.75"))
    assert shown([]) == [0.5, 0.5]
    said = "the finished result of A · seed 0 is shown, because the run has not finished or has other settings"
    assert capsys.readouterr().err == f"{saved}: {said}; --results with an empty folder shows the run\n"
    assert [result.scores["last"] for result in results_of(table, runs, None)] == [0.75, 0.5]
    (runs[0].folder / "finished").touch()
    assert shown([]) == [0.75, 0.5] and capsys.readouterr().err == ""


def test_results_that_the_options_do_not_ask_for_are_not_judged(tmp_path: Path) -> None:
    """Whether they come from runs or from the file of saved results."""
    content = {"published": {"A": {"": 50}, "B": {"": 50}}, "seeds": [0, 1], "margin": 20, "reason": "r"}
    table, saved = read_table(a_table(tmp_path, **content)), tmp_path / "saved.csv"

    def marks(*extra: str) -> set[str]:
        results = results_of(table, cells(table, tmp_path / "out", extra), saved)
        return {verdict.mark for verdict in verdicts(ResultTable(table, results)) if verdict.quantity == "score"}

    for cell in cells(table, tmp_path / "out", []):
        real_run(cell)
    write_results(saved, table, cells(table, tmp_path / "out", []))
    for _ in range(2):
        assert marks() == marks("--trainer.rounds", "20") == {"reproduced"}
        assert marks("--trainer.rounds", "7") == {"other settings"}
        shutil.rmtree(tmp_path / "out", ignore_errors=True)


@pytest.mark.parametrize(
    ("metric", "chooser", "best"),
    [("test/f1", "val/mse", 0.7), ("test/class_accuracy_std", "val/macro-AP", 0.9), ("test/f1", "val/f1", 0.9)],
)
def test_saved_results_keep_the_metric_that_chooses_a_round(metric: str, chooser: str, best: float, tmp_path: Path) -> None:
    table, saved = read_table(a_table(tmp_path, metric=metric)), tmp_path / "saved.csv"
    runs = cells(table, tmp_path / "out", [])
    for cell in runs:
        real_run(cell)
        path = next(cell.folder.glob("*/metrics.csv"))
        path.write_text(f"round,time/round,{metric},{chooser}\n1,1,0.5,3\n2,1,0.9,{2 if best == 0.7 else 5}\n3,1,0.7,1\n")
    write_results(saved, table, runs)
    shutil.rmtree(tmp_path / "out")
    assert [result.scores["val"] for result in results_of(table, runs, saved)] == [best, best]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("table,2,A", "other,2,A", "row 2: table 'other' in format 2; expected 'table' in format 2"),
        ("table,2,A", "table,1,A", "row 2: table 'table' in format 1; expected"),
        ("table,2,A", "table,2,C", "row 2: the table has no row 'C'"),
        ("table,2,A,,0", "table,2,A,,x", "row 2: the seed must be a whole number; got 'x'"),
        ("table,2,B", "table,2,A", "row 3: row 2 has the same run"),
        ("0.25 0.5", "0.25 nan", "row 2: test/accuracy has a value that is not finite"),
        ("0.25 0.5", "0.25", "row 2: test/accuracy has 1 values for 2 rounds"),
        ("0.25 0.5", "0.25 high", "row 2: could not convert string to float: 'high'"),
        *((",1 2,", f",{rounds},", "row 2: its rounds must be whole") for rounds in ("2 2", "0 2", "1.5 2", "2 1")),
        (",2.0,", ",-2.0,", "row 2: -2.0 is no figure of a run"),
        ("test/loss", "test/accuracy", "row 1: column test/accuracy is there twice"),
        ("seed,", "sead,", "row 1: no column seed"),
        ("table,", "\x00table,", "is damaged|line contains NUL|row 1: no column table"),
    ],
)
def test_saved_results_with_a_fault_are_one_line(old: str, new: str, message: str, tmp_path: Path) -> None:
    table, saved = read_table(a_table(tmp_path)), tmp_path / "saved.csv"
    runs = cells(table, tmp_path / "out", [])
    for cell in runs:
        real_run(cell)
    write_results(saved, table, runs)
    assert old in saved.read_text()
    saved.write_text(saved.read_text().replace(old, new, 1))
    with pytest.raises(ValueError, match=message) as error:
        read_results(saved, table, runs)
    assert "\n" not in str(error.value)


def test_seeds_with_other_metrics_are_one_line(tmp_path: Path) -> None:
    """Without an accuracy, the main metric of a seed would be its loss, and the mean over seeds would mix accuracies and losses."""
    table, saved = read_table(a_table(tmp_path, seeds=[0, 1])), tmp_path / "saved.csv"
    runs = cells(table, tmp_path / "out", [])
    for cell in runs:
        real_run(cell)
    write_results(saved, table, runs)
    path = next(runs[1].folder.glob("*/metrics.csv"))
    path.write_text(path.read_text().replace("test/accuracy", "test/other"))
    with pytest.raises(ValueError, match=r"metrics\.csv: A · seed 1 has no test/accuracy, which other seeds have: delete"):
        results_of(table, runs, None)
    shutil.rmtree(tmp_path / "out")
    before, changed, after = saved.read_text().partition("A,,1,")
    saved.write_text(before + changed + after.replace("0.25 0.5", "", 1))
    with pytest.raises(ValueError, match=r"saved\.csv, row 3: A · seed 1 has no test/accuracy"):
        results_of(table, runs, saved)


def test_a_primary_summary_that_no_run_has_is_one_line(tmp_path: Path) -> None:
    table = read_table(plan_file(tmp_path, summary="val"))
    runs = cells(table, tmp_path / "out", [])
    fake_run(runs[0], [0.1, 0.2], val__accuracy=[0.3, 0.4], finished=True)
    assert results_of(table, runs, None)[0].scores["val"] == 0.2
    fake_run(runs[1], [0.1, 0.2], finished=True)
    with pytest.raises(
        ValueError, match=r"metrics\.csv: B · seed 0 has no validation score, and the summary of table is val: set"
    ):
        results_of(table, runs, None)


def test_a_diverged_run_counts_with_its_last_score(tmp_path: Path) -> None:
    table = read_table(plan_file(tmp_path, rows={"A": None, "B": None}, seeds=[0, 1], published={"B": {"": 50}}))
    runs = cells(table, tmp_path / "out", [])
    for cell in runs:
        bad = cell.row == "B" and cell.seed == 1
        fake_run(cell, [0.5, 0.25 if bad else 0.75], finished=True, test__loss=[1, float("nan") if bad else 1])
    given = ResultTable(table, results_of(table, runs, None))
    assert given.scores("B", "", "best") == {0: 75, 1: 25} and given.comparisons("") == {}
    said = text(given, "std")
    assert "50.00 ± 35.36 (1 of 2 diverged)" in said and "Diverged, counted with the last score" in said
    assert [verdict.mark for verdict in verdicts(given)] == ["diverged"]
    assert "(1 of 2 diverged)" in latex(given, "std")


def test_a_run_that_diverges_in_round_1_counts_as_diverged(tmp_path: Path) -> None:
    """Its model has no score. Without a word on it, the table would show the mean over the seeds that survived, and their difference."""
    parts = {"rows": {"A": None, "B": None}, "columns": {"x": None, "y": None}, "average": "mean", "seeds": [0, 1, 2]}
    table = read_table(plan_file(tmp_path, **parts, published={"B": {"x": {"rounds": 5}}}))
    runs = cells(table, tmp_path / "out", [])
    for cell in runs:
        run = fake_run(cell, [0.5, 0.75], finished=True)
        if (cell.row, cell.column, cell.seed) == ("B", "x", 1):
            (run / "metrics.csv").unlink()
            (run / "run.yaml").write_text("seed: 1\n")
            (cell.folder / OUTPUT).write_text("flcog: error: the update of client 3 in round 1 is NaN or infinite: lower it\n")
            assert not cell.finished and cell.run is None
            conclude(cell, 2)
            assert cell.finished and cell.error is None
    saved = tmp_path / "saved.csv"
    assert write_results(saved, table, runs) == 12
    found = results_of(table, runs, None)
    shutil.rmtree(tmp_path / "out")
    for results in (found, results_of(table, runs, saved)):
        given = ResultTable(table, results)
        (diverged,) = (result for result in results if result.diverged)
        assert (diverged.name, diverged.finished, diverged.rounds, diverged.scores) == ("B · x · seed 1", True, 0, {})
        assert given.comparisons("x") == given.comparisons("mean") == {} and given.comparisons("y")["B"].difference.count == 3
        _, (_, (_, in_x, in_y, average, *_)) = summarise(given)
        assert "(1 of 3 diverged) (n = 2)" in in_x and "(1 of 3 diverged) (n = 2)" in average and "diverged" not in in_y
        assert [verdict.mark for verdict in verdicts(given)] == ["diverged"]
        assert latex(given, "std").count("(1 of 3 diverged)") == 2
        write_csv(given, tmp_path / "table.csv")
        with (tmp_path / "table.csv").open() as file:
            assert {(line["row"], line["column"]): line["diverged"] for line in csv.DictReader(file)}["B", "x"] == "1"
        assert "Diverged, counted with the last score if there is one, not judged and in no gain: B · x · seed 1" in text(
            given, "std"
        )


def test_a_row_whose_seeds_all_diverge_in_round_1_says_so(tmp_path: Path) -> None:
    table = read_table(plan_file(tmp_path, rows={"A": None}))
    given = ResultTable(table, [Result("A", "", 0, True, 0, None, {}, diverged=True)])
    assert summarise(given)[1][0][1] == "(1 of 1 diverged)" and "-- (1 of 1 diverged)" in latex(given, "std")


def test_the_curve_that_crosses_a_target_is_monotone_and_interpolated(cell: Cell) -> None:
    """The best accuracies so far are 0.2, 0.6, 0.6, 1.0 in rounds 1 to 4, so 0.8 is reached half-way between rounds 3 and 4."""
    fake_run(cell, [0.2, 0.6, 0.4, 1.0], comm__total_bytes=[10, 20, 30, 40])
    cell.target = 0.8
    assert came_to(cell).targets == {"accuracy_0.8": (pytest.approx(3.5), pytest.approx(35))}
    cell.target = 0.1
    assert came_to(cell).targets == {"accuracy_0.1": (1, 10)}


def test_a_curve_from_infinity_reaches_its_target_at_its_first_finite_point(cell: Cell) -> None:
    fake_run(cell, [0.1, 0.5], comm__total_bytes=[10, 20], test__loss=[math.inf, 0.25])
    assert came_to(replace(cell, target=0.5), "test/loss").targets == {"loss_0.5": (2, 20)}


def test_a_target_counts_within_the_rounds_of_its_column(cell: Cell) -> None:
    """The run reaches 0.8 in round 4, and ``RoundsToTarget`` notes it there. Columns that end before have missed it."""
    noted = {f"to_accuracy_0.75/{name}": ["", "", "", value, ""] for name, value in {"rounds": 4, "simulated": 7.5}.items()}
    fake_run(cell, [0.2, 0.4, 0.6, 1.0, 1.0], comm__total_bytes=[10, 20, 30, 40, 50], **noted)  # type: ignore[arg-type]
    cell.target = 0.8
    for until in (None, 4, 9):
        result = came_to(replace(cell, until=until))
        assert (
            result.targets["accuracy_0.8"] == (pytest.approx(3.5), pytest.approx(35)) and result.targets["accuracy_0.75"][0] == 4
        )
        assert result.simulated == {"accuracy_0.75": 7.5} and result.spent == ((4, 40) if until == 4 else (5, 50))
    short = came_to(replace(cell, until=3))
    assert (short.targets, short.simulated, short.spent, short.rounds) == ({}, {}, (3, 30), 5)


def test_a_column_of_few_rounds_is_a_low_bound(tmp_path: Path) -> None:
    """A run of five rounds that misses the target within the column's two needs more than two, and not more than five."""
    metrics = {"early": {"metric": "test/accuracy", "round": 2}, "all": "test/accuracy"}
    table: dict[str, Any] = {
        "rows": {"A": None, "B": None},
        "columns": {"x": {"target": 0.8}},
        "metrics": metrics,
        "seeds": [0, 1],
    }
    rule = {"published": {"A": {"x early": {"rounds": 2}}}, "margin": {"rounds": 1.25}, "reason": "A test."}
    plan = read_table(plan_file(tmp_path, **table, **rule))
    runs = cells(plan, tmp_path / "out", [])
    for cell in apart(runs):
        late, quick = [0.2, 0.4, 0.6, 0.6, 1.0], [0.2, 0.8, 0.8, 0.8, 0.8]
        fake_run(cell, late if cell.row == "A" else quick, finished=True, comm__total_bytes=[10, 20, 30, 40, 50])
    given = ResultTable(plan, results_of(plan, runs, None))
    (verdict,) = verdicts(given)
    assert (verdict.text, verdict.mark) == ("> 2 (0 of 2 seeds reached it)", "undecided")
    header, (a, _) = in_setting(given, "x early")
    assert a[header.index("rounds to accuracy_0.8")] == "> 2 (0 of 2 seeds reached it)"
    (found,) = [found for row in "AB" if (found := saving(given, row, "x early"))]
    assert found.text == "> 1.0x, > 0.0 %" and found.beyond, "B needs the two rounds and 20 bytes that did not suffice for A"


def test_a_target_that_no_run_reached_is_shown(tmp_path: Path) -> None:
    """The target of a column, and those of ``RoundsToTarget``, about the main metric and about another one."""
    asks = [{"target": 0.9}, {"target": 0.1, "monitor": "test/loss"}]
    parts = [{"class_path": "flcog.callbacks.RoundsToTarget", "init_args": each} for each in asks]
    (tmp_path / "asks.yaml").write_text(yaml.safe_dump({"trainer": {"callbacks": parts}}))
    columns = {"x": {"target": 0.8}, "y": {"configs": ["asks.yaml"]}, "z": None}
    plan, saved = read_table(a_table(tmp_path, columns=columns, seeds=[0, 1, 2])), tmp_path / "saved.csv"
    runs = cells(plan, tmp_path / "out", [])
    for cell in runs:
        real_run(cell)
    write_results(saved, plan, runs)
    live = results_of(plan, runs, None)
    shutil.rmtree(tmp_path / "out")
    for results in (live, results_of(plan, runs, saved)):
        given = ResultTable(plan, results)
        missed = {"x": ["accuracy_0.8"], "y": ["accuracy_0.9", "loss_0.1"], "z": []}
        for column, names in missed.items():
            header, rows = in_setting(given, column)
            assert [name for name in header if name.startswith("rounds to")] == [f"rounds to {name}" for name in names]
            for name in names:
                assert [row[header.index(f"rounds to {name}")] for row in rows] == ["> 2 (0 of 3 seeds reached it)"] * 2


def test_targets_without_bytes(tmp_path: Path) -> None:
    """Private runs withhold the bytes until a target. The rounds are shown alone."""
    plan = read_table(plan_file(tmp_path, rows={"A": None}, columns={"": {"target": 0.5}}))
    runs = cells(plan, tmp_path / "out", [])
    fake_run(runs[0], [0.25, 0.5], finished=True, **{"to_accuracy_0.4/rounds": ["", 2]})  # type: ignore[arg-type]
    given = ResultTable(plan, results_of(plan, runs, None))
    (result,) = given.results
    assert {name: rounds for name, (rounds, _) in result.targets.items()} == {"accuracy_0.4": 2, "accuracy_0.5": 2}
    assert all(math.isnan(sent) for _, sent in result.targets.values())
    header, (a,) = summarise(given)
    assert [a[header.index(f"rounds to accuracy_{target}")] for target in (0.4, 0.5)] == ["2", "2"]


def test_withheld_bytes_are_unknown(tmp_path: Path) -> None:
    """Private runs write no bytes, because bytes would reveal the cohort."""
    plan = read_table(plan_file(tmp_path, rows={"A": None, "B": None}, seeds=[0]))
    first, second = cells(plan, tmp_path / "out", [])
    withheld: Any = [""]
    fake_run(first, [0.5], finished=True, comm__up_bytes=withheld)
    fake_run(second, [0.6], finished=True, comm__up_bytes=[2048])
    header, rows = summarise(ResultTable(plan, results_of(plan, [first, second], None)))
    assert [row[header.index("sent up")] for row in rows] == ["", "2.0 KiB"]
