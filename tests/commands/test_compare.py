"""``flcog compare``: the runs of a table, the report on them, and that no run is trained twice."""

import csv
import re
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from harness import ROOT

from flcog.commands.cli import main
from flcog.commands.compare.plan import Cell, Table, cells
from flcog.commands.compare.published import Figure
from flcog.commands.compare.result_table import ResultTable
from flcog.commands.compare.saved_results import results_of
from flcog.commands.compare.table import figure_text, summarise
from flcog.commands.compare.table_file import read_table

TABLES = sorted((ROOT / "configs/tables").glob("*.yaml"))


def plan_file(folder: Path, **content: Any) -> Path:
    (folder / "base.yaml").write_text("trainer: {rounds: 2}\n")
    (folder / "arm.yaml").write_text("trainer: {rounds: 3}\n")
    path = folder / "table.yaml"
    path.write_text(yaml.safe_dump({"configs": ["base.yaml"], "rows": {"A": None, "B": {"configs": ["arm.yaml"]}}} | content))
    return path


def fake_run(cell: Cell, accuracies: list[float], time: float = 1.0, finished: bool = False, **columns: Sequence[float]) -> Path:
    """Write a run's directory with these values for each round. Keywords add further columns; ``__`` in their names becomes ``/``."""
    run = cell.folder / "20260101-000000"
    run.mkdir(parents=True, exist_ok=True)
    count = len(accuracies)
    series = {"test/accuracy": accuracies, "time/round": [time] * count, "comm/up_bytes": [512] * count}
    series |= {name.replace("__", "/"): values for name, values in columns.items()}
    with (run / "metrics.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, ["round", *series])
        writer.writeheader()
        for place in range(count):
            writer.writerow({"round": place + 1} | {name: values[place] for name, values in series.items()})
    if finished:
        (cell.folder / "finished").touch()
    return run


def filled(plan: Table, runs: list[Cell]) -> ResultTable:
    return ResultTable(plan, results_of(plan, runs, None))


@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.stem)
def test_every_table_of_ours_is_read(path: Path, tmp_path: Path) -> None:
    plan = read_table(path)
    assert len(cells(plan, tmp_path, [])) == len(plan.rows) * len(plan.columns) * len(plan.seeds)


def configured(config: Any, key: str) -> Any:
    """The value in a run's config for the key of a command-line argument. For a class this is its class path."""
    for name in key.split("."):
        if isinstance(config, list):
            named = [each for each in config if each["class_path"].endswith(f".{name}")]
            (config,) = named or [each for each in config if name in each["init_args"]]
            if named:
                continue
        config = config[name] if name in config else config["init_args"][name]
    return config["class_path"] if isinstance(config, dict) and "class_path" in config else config


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.usefixtures("command_line")
@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.stem)
def test_every_table_of_ours_reaches_its_settings(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = read_table(path)
    last_row, last_column = list(plan.rows)[-1], list(plan.columns)[-1]
    seen = set()
    for cell in cells(replace(plan, seeds=plan.seeds[:1]), tmp_path, []):
        # To save time, each name of an argument is checked once, not with each of its values.
        column, row = plan.columns[cell.column], plan.rows[cell.row]
        inside = row.columns.get(cell.column, {})
        names = (column.configs, *column.arguments, row.configs if row.arguments else (), *row.arguments, *inside)
        if names in seen or (cell.row != last_row and cell.column != last_column):
            continue
        seen.add(names)
        with pytest.raises(SystemExit, match=r"^0$"):
            main([*cell.arguments, "--print_config"])
        config = yaml.safe_load(capsys.readouterr().out)
        arguments: dict[str, Any] = {}
        for options in (plan.common.arguments, column.arguments, row.arguments, inside):
            arguments |= options
        for key, value in arguments.items():
            assert configured(config, key) == value, (cell.name, key)


def test_command_lines(tmp_path: Path) -> None:
    path = plan_file(
        tmp_path, arguments={"trainer.rounds": 9}, columns={"x y": {"arguments": {"data.fractions": [0.5, 1]}}}, seeds=[3]
    )
    _, cell = cells(read_table(path), tmp_path / "out", ["--trainer.rounds", "5"])
    folder = str(tmp_path / "out" / "x-y" / "B" / "seed3")
    assert cell.arguments == [
        *("fit", "-c", str(tmp_path / "base.yaml"), "-c", str(tmp_path / "arm.yaml")),
        *("--trainer.rounds", "9", "--data.fractions", "[0.5, 1]", "--trainer.rounds", "5"),
        *("--seed_everything", "3", "--trainer.default_root_dir", folder),
    ]


def test_rows_and_columns_of_another_table(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    plan_file(tmp_path / "one", columns={"x": None, "y": {"arguments": {"data.x": 1}}})
    (tmp_path / "two.yaml").write_text("{rows: one/table.yaml, columns: one/table.yaml, published: {B: {y: 5}}}")
    plan, first = read_table(tmp_path / "two.yaml"), read_table(tmp_path / "one/table.yaml")
    assert plan.rows == first.rows and plan.columns == first.columns and plan.common.configs == ()
    assert plan.rows["B"].configs == (tmp_path / "one/arm.yaml",)


def test_scores_over_seeds(tmp_path: Path) -> None:
    plan = read_table(plan_file(tmp_path, seeds=[0, 1], published={"B": {"": 71.5}}))
    runs = cells(plan, tmp_path / "out", [])
    series = {("A", 0): [0.1, 0.5, 0.4], ("A", 1): [0.7, 0.6, 0.2], ("B", 0): [0.9, 0, 0, 0, 0, 0.25]}
    for cell in runs:
        if (cell.row, cell.seed) in series:
            fake_run(cell, series[cell.row, cell.seed], time=2.0 if cell.row == "A" else 5.0)
    header, rows = summarise(filled(plan, runs))
    assert header == [
        *("", "best", "last", "mean of last 3 to 5", "published", "total time", "time of an acting round", "sent up")
    ]
    a = ["A", "60.00 ± 14.14", "30.00 ± 14.14", "41.67 ± 11.79", "", "1.00 (6.00 s)", "1.00 (2.00 s)", "1.5 KiB"]
    assert rows[0] == a
    # The mean is over the last five evaluations, not the sixth. Without a measured speed of the machine, times have no ratio.
    b = ["B", "90.00 (n = 1)", "25.00 (n = 1)", "5.00 (n = 1)", "71.50", "(30.0 s)", "(5.00 s)", "3.0 KiB"]
    assert rows[1] == b
    header, rows = summarise(filled(replace(plan, last=6), runs))
    assert header[3] == "mean of last 3 to 6" and rows[1][3] == f"{(90 + 25) / 6:.2f} (n = 1)"


def test_rounds_to_targets_over_seeds(tmp_path: Path) -> None:
    plan = read_table(plan_file(tmp_path, seeds=[0, 1], rows={"A": None, "B": None, "C": None}))
    runs = cells(plan, tmp_path / "out", [])
    rounds = {("A", 0): 2, ("A", 1): 3, ("B", 0): 2}  # Seed 1 of B does not reach the target. C has not been run.
    for cell in runs:
        if cell.row == "C":
            continue
        fake_run(cell, [0.1, 0.2, 0.3, 0.4])
        if (cell.row, cell.seed) in rounds:
            table = cell.folder / "20260101-000000" / "metrics.csv"
            lines = table.read_text().splitlines()
            name, reached = "to_accuracy_0.2", rounds[cell.row, cell.seed]
            lines[0] += "".join(f",{name}/{what}" for what in ("rounds", "up_bytes", "down_bytes", "simulated"))
            lines[1:] = [
                line + (f",{reached},{1024 * reached},2048,{600 * reached}" if i == reached else ",,,,")
                for i, line in enumerate(lines[1:], 1)
            ]
            table.write_text("\n".join(lines) + "\n")
    header, rows = summarise(filled(plan, runs))
    assert header[:5] == ["", "best", "last", "mean of last 4", "rounds to accuracy_0.2"]
    # (1024 x 2.5 + 2048) bytes on average
    assert [row[4] for row in rows] == ["2.5 (4.5 KiB, 1,500 s simulated)", "> 4 (1 of 2 seeds reached it)", ""]
    assert figure_text(Figure(65 / 3), "rounds") == "21.7" and figure_text(Figure(100, beyond=True), "rounds") == "> 100"


def test_the_deviation_of_a_published_gain_has_no_sign() -> None:
    assert figure_text(Figure(3.95, spread=0.64), "gain") == "+3.95 ± 0.64"


@pytest.mark.slow
def test_what_was_run_is_shown_whatever_its_seeds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, out = plan_file(tmp_path), str(tmp_path / "out")
    for cell in cells(replace(read_table(path), seeds=(4, 11)), tmp_path / "out", []):
        fake_run(cell, [0.25 if cell.seed == 4 else 0.75])
    main(["compare", str(path), "--out", out, "--show"])
    assert "| A | 50.00 ± 35.36 |" in capsys.readouterr().out
    main(["compare", str(path), "--out", out, "--show", "--seeds", "11"])
    assert "| A | 75.00 |" in capsys.readouterr().out


def test_a_run_is_told_by_the_tables_metric(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Process:
        def __init__(self, command: list[str], **_: Any) -> None:
            folder = Path(command[command.index("--trainer.default_root_dir") + 1])
            fake_run(Cell("A", "", 0, folder, []), [0.5, 0.25])

        def wait(self) -> int:
            return 0

    monkeypatch.setattr("flcog.commands.compare.training.subprocess.Popen", Process)
    arguments = ["compare", str(plan_file(tmp_path, metric="comm/up_bytes")), "--out", str(tmp_path / "out")]
    main(arguments)
    assert "A · seed 0: best 512.00, last 512.00" in capsys.readouterr().out
    # A metric that no run has logged is reported at the end, without the loss of a run.
    arguments[1] = str(plan_file(tmp_path, metric="test/accurracy"))
    with pytest.raises(SystemExit):
        main(arguments)
    error = capsys.readouterr().err
    assert "no run logged the table's metric test/accurracy, but comm/up_bytes, round, test/accuracy, time/round" in error


def test_only_what_is_unfinished_is_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path, started = plan_file(tmp_path), []

    class Process:
        def __init__(self, command: list[str], stdout: Any, **options: Any) -> None:
            started.append(command)
            assert Path(stdout.name).name == "output.txt"
            self.fails = str(tmp_path / "arm.yaml") in command and "--ckpt_path" not in command
            if not self.fails:
                fake_run(Cell("", "", 0, Path(stdout.name).parent, []), [0.5])
            stdout.write(b"some progress\nflcog: error: the disk is full\n" if self.fails else b"fine\n")

        def wait(self) -> int:
            return int(self.fails)

    monkeypatch.setattr("flcog.commands.compare.training.subprocess.Popen", Process)
    arguments = ["compare", str(path), "--out", str(tmp_path / "out"), "--jobs", "2"]
    # The settings of a claimed cell may change until it is run.
    (cell, *_) = cells(read_table(path), tmp_path / "out", ["--trainer.rounds", "99"])
    cell.files.claim()
    with pytest.raises(SystemExit):
        main(arguments)
    assert "1 of 2 runs failed, the first, B · seed 0: the disk is full" in capsys.readouterr().err
    # The failed run had already written a checkpoint.
    (tmp_path / "out/B/seed0/20260101-000000/checkpoints").mkdir(parents=True)
    (tmp_path / "out/B/seed0/20260101-000000/checkpoints/last.ckpt").touch()
    started.clear()
    main(arguments)
    assert len(started) == 1 and started[0][-2:] == ["--ckpt_path", "last"]
    started.clear()
    main(arguments)
    assert not started and "2 runs, 2 of them finished before" in capsys.readouterr().out
    # A copy of the configs together with the runs is still the same comparison.
    shutil.copytree(tmp_path, tmp_path / "elsewhere")
    main(["compare", str(tmp_path / "elsewhere" / path.relative_to(tmp_path)), "--out", str(tmp_path / "elsewhere/out")])
    assert not started and "2 runs, 2 of them finished before" in capsys.readouterr().out


def test_a_slip_in_the_command_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An option that no run knows is reported once. A row that is refused does not stop the other rows."""
    started = []

    class Process:
        def __init__(self, command: list[str], stdout: Any, **_: Any) -> None:
            started.append(command)
            self.fails = "--trainer.runds" in command or "--trainer.lr" in command
            if not self.fails:
                fake_run(Cell("", "", 0, Path(stdout.name).parent, []), [0.5])
            stdout.write(b"flcog: error: there is no such option\n" if self.fails else b"fine\n")

        def wait(self) -> int:
            return int(self.fails)

    monkeypatch.setattr("flcog.commands.compare.training.subprocess.Popen", Process)
    rows = {"A": {"arguments": {"trainer.lr": 1}}, "B": None}
    table = plan_file(tmp_path, configs=[str(ROOT / "configs/quickstart.yaml")], rows=rows, seeds=[0, 1])
    with pytest.raises(SystemExit):
        main(["compare", str(table), "--out", str(tmp_path / "one"), "--", "--trainer.runds", "3"])
    said = capsys.readouterr()
    assert len(started) == 1 and "The other runs are not started, because no configuration of theirs can be read" in said.out
    assert "1 of 4 runs failed, the first, A · seed 0: there is no such option" in said.err
    with pytest.raises(SystemExit):
        main(["compare", str(table), "--out", str(tmp_path / "two")])
    assert len(started) == 5 and "2 of 4 runs failed" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "arguments", "message"),
    [
        ({"rows": None}, [], "names no rows"),
        ({"arms": {}}, [], "has arms; a table may have title, configs"),
        ({"rows": {"A": {"config": []}}}, [], "row A in .* may have configs .* and arguments .*; got"),
        ({"configs": ["nowhere.yaml"]}, [], "names .*nowhere.yaml, which is no file; paths are relative to"),
        ({"columns": "another.yaml"}, [], "there is no file .*another.yaml: give a table's YAML"),
        ({"published": {"C": {}}}, [], "names 'C', which is neither a row nor a column"),
        ({"seeds": 3}, [], r"seeds in .* must be a list of whole numbers, such as \[0, 1, 2\]; got 3"),
        ({"last": 0}, [], "last in .* must be a whole number of evaluations, at least 1; got 0"),
        ({}, ["--only", "C"], "--only C: the table has the rows A, B"),
    ],
)
def test_mistakes(
    content: dict[str, Any], arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit:
        main(["compare", str(plan_file(tmp_path, **content)), "--out", str(tmp_path / "out"), *arguments])
    error = capsys.readouterr().err
    assert exit.value.code == 2 and error.count("\n") == 1
    assert re.search(message, error)


@pytest.mark.slow
def test_the_digits_for_real(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = str(next(path for path in TABLES if path.stem == "digits"))
    only = ["--only", "FedAvg", "FedProx", "Dirichlet(0.1)", "--", "--trainer.rounds", "2", "--trainer.local_steps", "2"]
    main(["compare", table, "--out", str(tmp_path), "--jobs", "2", *only])
    rows = list(csv.DictReader((tmp_path / "table.csv").open()))
    assert [row["row"] for row in rows] == ["FedAvg", "FedProx"]
    assert all(0 < float(rows[0][name]) <= 100 for name in ("best", "last", "mean_of_last"))
