"""Tables with several metrics of the same runs, such as the training and test accuracies in FedWalk's Table 2."""

import csv
import math
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from commands.test_compare import TABLES, fake_run, filled, plan_file
from flcog.commands.cli import main
from flcog.commands.compare.candidates import sign
from flcog.commands.compare.curves import curves_figure, draw_curves, evaluations
from flcog.commands.compare.latex import latex
from flcog.commands.compare.notes import notes
from flcog.commands.compare.plan import Cell, apart, cells, select
from flcog.commands.compare.report import text
from flcog.commands.compare.result_table import ResultTable
from flcog.commands.compare.results import check_metric
from flcog.commands.compare.saved_results import results_of
from flcog.commands.compare.table import summarise
from flcog.commands.compare.table_file import read_table
from flcog.commands.compare.verdicts import verdicts
from flcog.core.monitor import mode_of

METRICS = {"loss": "test/loss", "training": "training/accuracy"}
SETTINGS = {"x": None, "y": {"arguments": {"data.seed": 3}}}


def write_run(folder: Path) -> None:
    run = folder / "20260101-000000"
    run.mkdir(parents=True)
    with (run / "metrics.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["round", "training/accuracy", "test/loss"], [1, 0.5, 2.0], [2, 0.75, 3.0]])


def test_every_setting_has_a_column_for_each(tmp_path: Path) -> None:
    plan = read_table(plan_file(tmp_path, columns=SETTINGS, metrics=METRICS, published={"A": {"y loss": 2.5}}))
    assert list(plan.columns) == ["x loss", "x training", "y loss", "y training"]
    runs = cells(plan, tmp_path / "out", [])
    assert [cell.metric for cell in runs if cell.row == "A"] == list(METRICS.values()) * 2
    # The columns of a setting show the same runs. Each run is trained once, even if only a part of the table is requested.
    folders = {"x": tmp_path / "out/x/A/seed0", "y": tmp_path / "out/y/A/seed0"}
    assert {cell.column: cell.folder for cell in runs if cell.row == "A"} == {name: folders[name[0]] for name in plan.columns}
    assert [cell.folder for cell in apart(runs)] == list(dict.fromkeys(cell.folder for cell in runs)) and len(apart(runs)) == 4
    (part,) = cells(select(plan, ["A", "y loss"]), tmp_path / "out", [])
    assert part.folder == folders["y"] and "data.seed" in " ".join(part.arguments)


def test_without_settings_they_are_the_columns(tmp_path: Path) -> None:
    plan = read_table(plan_file(tmp_path, metrics=METRICS))
    assert list(plan.columns) == list(METRICS)
    assert cells(plan, tmp_path, [])[0].folder == tmp_path / "A/seed0"


@pytest.mark.slow
def test_each_column_is_of_its_metric(tmp_path: Path) -> None:
    plan = read_table(plan_file(tmp_path, metrics=METRICS))
    runs = cells(plan, tmp_path / "out", [])
    for cell in apart(runs):
        write_run(cell.folder)
    given = filled(plan, runs)
    assert given.scores("A", "training", "best") == {0: 75.0} and given.scores("A", "loss", "best") == {0: 2.0}
    assert draw_curves(plan, results_of(plan, runs, None), tmp_path)
    (runs[0].folder / "finished").touch()
    check_metric(results_of(plan, runs, None), runs)
    wrong = read_table(plan_file(tmp_path, metrics=METRICS | {"oops": "test/acuracy"}))
    runs = cells(wrong, tmp_path / "out", [])
    with pytest.raises(
        ValueError, match="no run logged the table's metric test/acuracy, but round, test/loss, training/accuracy"
    ):
        check_metric(results_of(wrong, runs, None), runs)


def test_a_metric_may_have_a_summary_of_its_own(tmp_path: Path) -> None:
    """For example, FedWalk reports the training accuracy at the best evaluation so far: its last value, not its largest."""
    metrics = {"noted": {"metric": "training/accuracy_at_best", "summary": "last"}, "test": "test/accuracy"}
    plan = read_table(plan_file(tmp_path, metrics=metrics, published={"A": {"noted": 70.0}}))
    runs = cells(plan, tmp_path / "out", [])
    for cell in apart(runs):
        fake_run(cell, [0.5, 0.625, 0.25], finished=True, training__accuracy_at_best=[0.875, 0.75, 0.75])
    given = filled(plan, runs)
    header, (a, _) = summarise(given)
    assert (header[1:3], a[1:3]) == (["noted", "test"], ["75.00 [70.00]", "62.50"])
    (verdict,) = verdicts(given)
    assert verdict.ours is not None and verdict.ours.mean == 75 and given.comparisons("noted")["B"].difference.mean == 0
    said = text(given, "std")
    assert "The first table has the best evaluation (last evaluation for noted) of each run; the paper's is in brackets." in said
    tex = latex(given, "std")
    assert (
        r"A & \textbf{75.00} & \textbf{62.50} \\" in tex
        and "Best evaluation (last evaluation for noted), mean over 1 seed" in tex
    )


def test_a_metric_may_be_of_a_runs_first_rounds(tmp_path: Path) -> None:
    """For example, one run of three rounds gives FedDisco's Table 12: the accuracy after the first, second and third round."""
    metrics = {f"round {last}": {"metric": "test/accuracy", "round": last} for last in (1, 2, 9)}
    plan = read_table(plan_file(tmp_path, metrics=metrics, summary="last"))
    runs = cells(plan, tmp_path / "out", [])
    assert len(apart(runs)) == 2
    for cell in apart(runs):
        fake_run(cell, [0.5, 0.625, 0.25], finished=True)
    header, (a, _) = summarise(filled(plan, runs))
    assert (header[1:4], a[1:4]) == (["round 1", "round 2", "round 9"], ["50.00", "62.50", "25.00"])
    # The time covers the whole run.
    assert a[4].endswith("(3.00 s)")
    with mock.patch("flcog.commands.compare.curves.curves_figure", wraps=curves_figure) as drawn:
        assert draw_curves(plan, results_of(plan, runs, None), tmp_path)
    (panels, *_), _ = drawn.call_args
    assert {name: [len(seed) for seed in arms["A"]] for name, arms in panels.items()} == {"round 9": [3]}


@pytest.mark.parametrize(
    "content",
    [
        {"metric": "test/foo", "mode": "min", "columns": {"a": {"target": 0.5}}},
        {"metrics": {"a": {"metric": "test/foo", "mode": "min"}}, "columns": {"": {"target": 0.5}}},
    ],
)
def test_a_table_may_say_that_smaller_values_are_better(content: dict[str, Any], tmp_path: Path) -> None:
    plan = read_table(plan_file(tmp_path, **content))
    runs = cells(plan, tmp_path / "out", [])
    for cell in runs:
        low = [2.0, 0.25, 3.0] if cell.row == "A" else [3.0, 1.0, 2.0]
        chosen = [1.0, 9.0, 0.5]  # by the smallest validation score, which is in round 3
        fake_run(cell, [0.5] * 3, finished=True, test__foo=low, val__foo=chosen)
    given = filled(plan, runs)
    assert given.scores("A", "a", "best") == {0: 0.25} and given.scores("A", "a", "val") == {0: 3.0}
    (a, b) = given.results
    assert a.targets == {"foo_0.5": (pytest.approx(1 + 1.5 / 1.75), pytest.approx(math.nan, nan_ok=True))} and b.targets == {}
    assert r"A & \textbf{0.2500}" in latex(given, "std") and "the name does not tell" not in text(given, "std")
    assert sign([a]) == 1, "--tune takes the configuration with the smallest score"


@pytest.mark.parametrize(
    ("metrics", "said"),
    [
        (
            {"a": "test/foo"},
            ["Larger values of test/foo count as better, because the name does not tell."],
        ),
        ({"a": "test/foo", "b": "test/bar"}, ["Larger values of test/foo and test/bar count as better, because"]),
        ({"a": "test/nll", "b": {"metric": "test/foo", "mode": "max"}}, []),
    ],
)
def test_a_note_names_metrics_whose_names_do_not_tell_what_is_better(
    metrics: dict[str, Any], said: list[str], tmp_path: Path
) -> None:
    plan = read_table(plan_file(tmp_path, metrics=metrics))
    runs = cells(plan, tmp_path / "out", [])
    for cell in apart(runs):
        fake_run(cell, [0.5], finished=True, test__foo=[0.5], test__bar=[0.5], test__nll=[0.5])
    found = [note for note in notes(filled(plan, runs), "std") if "as better" in note]
    assert len(found) == len(said) and all(note.startswith(start) for note, start in zip(found, said, strict=True))


def test_only_shares_are_shown_in_percent(tmp_path: Path) -> None:
    """All values are at most 1. Of the losses, that is chance."""
    metrics = {
        "accuracy": "test/accuracy",
        "spread": "test/accuracy_std",
        "nll": "test/nll",
        "drift": "drift/norm",
        "foo": {"metric": "test/foo", "mode": "min"},
    }
    plan = read_table(plan_file(tmp_path, metrics=metrics))
    runs = cells(plan, tmp_path / "out", [])
    columns = {name: [0.9] for name in ("test__accuracy_std", "test__nll", "drift__norm", "test__foo")}
    for cell in apart(runs):
        fake_run(cell, [0.9], finished=True, **columns)
    given = filled(plan, runs)
    header, (a, _) = summarise(given)
    shown = {"accuracy": "90.00", "spread": "90.00", "nll": "0.9000", "drift": "0.9000", "foo": "0.9000"}
    assert dict(zip(header[1:6], a[1:6], strict=True)) == shown
    said = "Scores are test/accuracy and test/accuracy_std, in percent, and drift/norm and test/foo and test/nll, as logged."
    assert notes(given, "std")[0].startswith(said)
    _, labels = evaluations(plan, given.results)
    assert labels["foo"] == "Test foo" and labels["accuracy"] == "Test accuracy (%)"
    alone = ResultTable(select(plan, ["nll"]), [result for result in given.results if result.column == "nll"])
    assert notes(alone, "std")[0].startswith("Scores are test/nll, as logged.")


@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.stem)
def test_every_table_of_ours_tells_which_values_are_better(path: Path, tmp_path: Path) -> None:
    runs = cells(read_table(path), tmp_path, [])
    assert all(mode_of(cell.metric) for cell in runs if cell.metric)


@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.stem)
def test_what_was_noted_at_the_best_evaluation_is_the_last_that_was_noted(path: Path) -> None:
    table = read_table(path)
    noted = [name for name, part in table.columns.items() if (part.metric or table.metric or "").endswith("_at_best")]
    assert {table.summary_of(name) for name in noted} <= {"last"} and bool(noted) == (
        path.stem in ("fedwalk", "fedwalk-cifar100")
    )


@pytest.mark.slow
def test_a_run_is_trained_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    started = []

    class Process:
        def __init__(self, command: list[str], **_: Any) -> None:
            started.append(command[command.index("--trainer.default_root_dir") + 1])
            write_run(Path(started[-1]))

        def wait(self) -> int:
            return 0

    monkeypatch.setattr("flcog.commands.compare.training.subprocess.Popen", Process)
    main(["compare", str(plan_file(tmp_path, columns=SETTINGS, metrics=METRICS)), "--out", str(tmp_path / "out")])
    assert len(started) == len(set(started)) == 4
    printed = capsys.readouterr().out
    assert "4 runs, 0 of them finished before" in printed
    with (tmp_path / "out/table.csv").open() as file:
        lines = {(line["row"], line["column"]): line for line in csv.DictReader(file)}
    assert {key: line["metric"] for key, line in lines.items() if key[0] == "B"} == {
        ("B", f"{setting} {name}"): metric for setting in "xy" for name, metric in METRICS.items()
    }


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            {"metrics": ["test/loss"]},
            r"metrics in .* must be columns of metrics.csv by name, \{test: test/accuracy\}, or .*; got \['test/loss'\]",
        ),
        ({"metrics": {"a": 3}}, "metrics in .* must be columns of metrics.csv by name"),
        (
            {"metrics": {"a": {"summary": "last"}}},
            r"with their own mode \(min or max\), summary or last round, "
            r"\{test: \{metric: test/accuracy, mode: max, summary: last, round: 10\}\}",
        ),
        ({"metrics": {"a": {"metric": "test/loss", "summary": "worst"}}}, "or with their own mode .*, summary or last round"),
        ({"metrics": {"a": {"metric": "test/loss", "round": 0}}}, "or with their own mode .*, summary or last round"),
        ({"metrics": {"a": {"metric": "test/loss", "rounds": 3}}}, "or with their own mode .*, summary or last round"),
        ({"metrics": {"a": {"metric": "test/loss", "mode": "down"}}}, r"or with their own mode \(min or max\)"),
        ({"metrics": METRICS, "metric": "test/loss"}, "has both metric and metrics: keep one"),
        ({"metric": "test/foo", "mode": "lower"}, r"mode in .*table.yaml must be max or min; got 'lower'"),
        *(
            (
                {"metrics": METRICS, name: "all"},
                rf"{name} in .* would mix test/loss and training/accuracy: remove it, or keep one",
            )
            for name in ("average", "worst")
        ),
        ({"mode": "min"}, "has mode min, which is about one metric: name that metric under metric"),
        ({"mode": "min", "metrics": METRICS}, r"one metric: write \{metric: \.\.\., mode: \.\.\.\} under metrics"),
    ],
)
def test_mistakes(content: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        read_table(plan_file(tmp_path, **content))


def test_a_target_is_about_the_first_metric(tmp_path: Path) -> None:
    """It would be "rounds to loss_0.6" in the columns of the loss. The first metric may have a second column of fewer rounds."""
    (tmp_path / "base.yaml").write_text("")
    metrics = "{test: test/accuracy, loss: test/loss, early: {metric: test/accuracy, round: 1}}"
    path = tmp_path / "table.yaml"
    path.write_text(f"{{configs: [base.yaml], rows: {{A: }}, columns: {{x: {{target: 0.6}}, y: }}, metrics: {metrics}}}")
    targets = {cell.column: cell.target for cell in cells(read_table(path), tmp_path, [])}
    assert targets == {"x test": 0.6, "x loss": None, "x early": 0.6, "y test": None, "y loss": None, "y early": None}


def test_rounds_of_one_metric_have_an_average(tmp_path: Path) -> None:
    metrics = {"early": {"metric": "test/loss", "round": 1}, "late": "test/loss"}
    plan = read_table(plan_file(tmp_path, metrics=metrics, average="mean", worst="worst"))
    runs = cells(plan, tmp_path / "out", [])
    for cell in apart(runs):
        fake_run(cell, [0.5, 0.5], finished=True, test__loss=[3.0, 1.0])
    given = filled(plan, runs)
    assert given.scores("A", "mean", "best") == {0: 2.0} and given.scores("A", "worst", "best") == {0: 3.0}


def test_main_metrics_that_differ_between_settings_have_no_average(tmp_path: Path) -> None:
    """For example, an image classification and a regression."""
    plan = read_table(plan_file(tmp_path, columns={"x": None, "y": None}, average="mean", worst="worst case"))
    for cell in cells(plan, tmp_path / "out", []):
        run = fake_run(cell, [0.5, 0.75], finished=True)
        if cell.column == "y":
            (run / "metrics.csv").write_text("round,test/mse\n1,9.0\n2,4.0\n")
    given = filled(plan, cells(plan, tmp_path / "out", []))
    header, (a, _) = summarise(given)
    assert dict(zip(header[1:5], a[1:5], strict=True)) == {"x": "75.00", "y": "4.0000", "mean": "", "worst case": ""}
    assert "There is no mean and no worst case, because the main metrics of the settings differ." in notes(given, "std")


def test_cells_of_one_run_are_told_apart_from_names_that_clash(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="would both be run in"):
        cells(read_table(plan_file(tmp_path, rows={"a/b": None, "a:b": None}, metrics=METRICS)), tmp_path, [])
    same = [Cell("A", "x", 0, tmp_path, []), Cell("A", "y", 0, tmp_path, [])]
    assert apart(same) == same[:1]
