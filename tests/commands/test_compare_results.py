"""What a run came to: its scores, the rounds in which it acts, and results that are kept when its directory is gone."""

import csv
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from commands.test_compare import fake_run, plan_file
from flcog.callbacks import FedCOG, FedProx
from flcog.commands.cli import main
from flcog.commands.compare.filled import Filled
from flcog.commands.compare.plan import Cell, cells
from flcog.commands.compare.report import text
from flcog.commands.compare.results import Result, percent_scale, result_of
from flcog.commands.compare.saved_results import read_results, results_of, write_results
from flcog.commands.compare.table_file import read_table
from flcog.run.description import acting_rounds


@pytest.fixture
def cell(tmp_path: Path) -> Cell:
    return Cell("A", "x", 3, tmp_path / "cell", [])


def came_to(cell: Cell, metric: str | None = None, last: int = 5) -> Result:
    result = result_of(cell, metric, last)
    assert result is not None
    return result


def test_the_scores_of_a_run(cell: Cell) -> None:
    assert result_of(cell, None, 5) is None
    fake_run(cell, [0.1, 0.5, 0.3, 0.4])
    result = came_to(cell, last=3)
    assert result.scores == {"best": 0.5, "last": 0.4, "mean": pytest.approx(0.4)} and result.metric == "test/accuracy"
    assert (result.averaged, result.deviation, result.rounds, result.finished) == (3, pytest.approx(0.1), 4, False)
    assert came_to(cell, last=9).averaged == 4


def test_the_validation_set_chooses_a_round(cell: Cell) -> None:
    fake_run(cell, [0.1, 0.5, 0.3], val__accuracy=[0.2, 0.3, 0.4], val__loss=[1, 3, 2])
    assert came_to(cell).scores["val"] == 0.3
    assert came_to(cell, "test/accuracy").scores["val"] == 0.3
    # Of equally good rounds the first, which is what best.ckpt holds.
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
    # The spread of a share is shown in percentage points.
    assert spread.scores["best"] == 0.2 and percent_scale([spread]) == 100


def test_no_score_is_no_best_one(cell: Cell) -> None:
    fake_run(cell, [float("nan"), 0.25, float("nan")], val__accuracy=[float("nan")] * 3)
    scores = came_to(cell, "test/accuracy").scores
    assert scores["best"] == 0.25 and "val" not in scores, "no validation chose a round"


@pytest.mark.parametrize(
    ("methods", "rounds"),
    [
        ([], [1, 70]),
        ([FedProx(mu=0.1)], [1, 70]),
        ([FedProx(mu=0.1), FedCOG(start_round=50)], [51, 70]),
        ([FedProx(mu=0.1, stop_round=60), FedCOG(start_round=50)], [51, 60]),
        # They never act together, or not in this run.
        ([FedProx(mu=0.1, stop_round=40), FedCOG(start_round=50)], [1, 70]),
        ([FedCOG(start_round=70)], [1, 70]),
    ],
)
def test_rounds_in_which_all_methods_act(methods: list[Any], rounds: list[int]) -> None:
    assert acting_rounds(methods, 70) == rounds


def test_time_is_the_total_and_that_of_acting_rounds(cell: Cell) -> None:
    """One slow round in five: the median round would not show it."""
    run = fake_run(cell, [0.1] * 5, time__round=[1.0, 1.0, 1.0, 1.0, 9.0], comm__total_bytes=[10, 20, 30, 40, 50])
    assert (came_to(cell).seconds, came_to(cell).acting_seconds) == (13, 2.6)
    (run / "run.yaml").write_text("{acting_rounds: [5, 5], git_commit: abc}")
    result = came_to(cell)
    assert (result.seconds, result.acting_seconds, result.commit) == (13, 9, "abc")
    assert (result.up_bytes, result.total_bytes) == (5 * 512, 50)
    (run / "run.yaml").write_bytes(b"\xff")
    assert came_to(cell).acting_seconds == 2.6


def test_time_that_another_run_took_is_marked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """B acts in round 3 alone and has its first two from "A, late"; A's are all its own."""
    path, out, saved = plan_file(tmp_path, rows={"A": None, "A, late": None, "B": None}), tmp_path / "out", tmp_path / "results"
    for cell in cells(read_table(path), out, []):
        run = fake_run(cell, [0.1, 0.2, 0.3], finished=True, time__round=[1.0, 2.0, 6.0])
        if cell.row != "A":
            trunk = {"run": "/elsewhere/out/" + ("A--late" if cell.row == "B" else "A") + "/seed0/20260101-000000", "round": 2}
            acting = [3, 3] if cell.row == "B" else [1, 3]
            (run / "run.yaml").write_text(yaml.safe_dump({"branch": trunk, "acting_rounds": acting}))
    command = ["compare", str(path), "--out", str(out), "--results", str(saved), "--show"]
    main([*command, "--save-results"])
    shown = capsys.readouterr().out
    times = [[cell.strip() for cell in line.split("|")[-4:-2]] for line in shown.splitlines() if line.startswith("|")][2:5]
    assert times == [
        ["1.00 (9.00 s)", "1.00 (3.00 s)"],
        ["1.00 (9.00 s) *", "1.00 (3.00 s) *"],
        ["1.00 (9.00 s) *", "2.00 (6.00 s)"],
    ]
    assert (
        "trained, and timed, once for several arms: A trained the first 2 of A, late; A, late trained the first 2 of B." in shown
    )
    with (out / "table.csv").open() as file:
        assert [line["rounds_timed_in_another_run"] for line in csv.DictReader(file)] == ["", "2", "2"]
    shutil.rmtree(out)
    main(command)
    assert "A, late trained the first 2 of B" in capsys.readouterr().out


def test_times_under_other_load_are_marked(tmp_path: Path) -> None:
    plan = read_table(plan_file(tmp_path, rows={"A": None, "B": None}))
    runs = cells(plan, tmp_path / "out", [])
    for cell, share in zip(runs, (0.0, 0.4), strict=True):
        fake_run(cell, [0.5, 0.6], finished=True, time__waiting_share=[share] * 2)
    results = results_of(plan, runs, None)
    write_results(tmp_path / "saved.csv", results, runs)
    shutil.rmtree(tmp_path / "out")
    for found in (results, results_of(plan, runs, tmp_path / "saved.csv")):
        said = text(Filled(plan, found), "std")
        marked = [line[:3] for line in said.splitlines() if "†" in line and line.startswith("|")]
        assert marked == ["| B"] and "for a core: B · seed 0 (40 %)" in said


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
    assert [(line["row"], line["seed"], float(line["best"]), float(line["val"])) for line in lines] == [
        *(("A", "0", 0.25, 0.1), ("A", "1", 0.375, 0.1), ("B", "0", 0.5, 0.1))
    ]
    shutil.rmtree(out)
    main(command)
    again = capsys.readouterr().out
    scores = [line for line in shown.splitlines() if line.startswith("| A |")]
    assert scores and set(scores) <= set(again.splitlines())
    # Saving some again leaves the others.
    fake_run(runs[0], [0.9], finished=True)
    main([*command, "--save-results", "--seeds", "0"])
    assert [line["best"] for line in csv.DictReader((saved / "table.csv").open())] == ["0.9", "0.375", "0.5"]


def test_saved_results_are_finite_and_of_the_tables_metric(tmp_path: Path) -> None:
    path, saved = plan_file(tmp_path), tmp_path / "saved.csv"
    runs = cells(read_table(path), tmp_path / "out", [])
    for cell in runs:
        fake_run(cell, [0.5], finished=True)
    write_results(saved, [came_to(cell) for cell in runs], runs)
    assert not any(result.outdated for result in read_results(saved, runs))
    other = [replace(cell, metric="test/loss") for cell in runs]
    assert all(result.outdated for result in read_results(saved, other))
    saved.write_text(saved.read_text().replace("0.5", "inf"))
    with pytest.raises(ValueError, match=r"is damaged .*inf is no figure of a run"):
        read_results(saved, runs)


def test_saved_results_know_their_settings(tmp_path: Path) -> None:
    path, saved = plan_file(tmp_path), tmp_path / "saved.csv"
    runs = cells(read_table(path), tmp_path / "out", ["--trainer.rounds", "5", "--data.data_dir", "/here"])
    for cell in runs:
        fake_run(cell, [0.5], finished=True)
        (cell.folder / "arguments.yaml").write_text(yaml.safe_dump(cell.arguments))
    plain = cells(read_table(path), tmp_path / "out", [])
    # Whether the command that looks at them gives the arguments again or not.
    for looked_at in (runs, plain):
        results = [result for cell in looked_at if (result := result_of(cell, None, 5))]
        assert [result.arguments for result in results] == ["--trainer.rounds 5"] * 2 and not any(r.outdated for r in results)
    write_results(saved, results, plain)
    found = read_results(saved, plain)
    np.testing.assert_equal(*([vars(result) | {"scores": {}} for result in each] for each in (found, results)))  # some are NaN
    changed = cells(read_table(plan_file(tmp_path, arguments={"trainer.rounds": 9})), tmp_path / "out", [])
    assert all(result.outdated for result in read_results(saved, changed))
    assert all(came_to(cell).outdated for cell in changed)
    # Saving leaves out what is outdated.
    assert write_results(tmp_path / "none.csv", [came_to(cell) for cell in changed], changed) == 0
    assert not (tmp_path / "none.csv").exists()


def test_saved_results_that_are_damaged(tmp_path: Path) -> None:
    saved = tmp_path / "saved.csv"
    for damaged in ("row,column\nA,\n", "\x00", 'row,"'):
        saved.write_text(damaged)
        with pytest.raises(ValueError, match=r"saved\.csv is damaged .*: write it again with --save-results"):
            read_results(saved, [])
            raise ValueError(f"{damaged!r} was read")
