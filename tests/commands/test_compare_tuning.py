"""``flcog compare --tune``: the grid, the choice by validation data on separate seeds, and the one-line errors."""

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from harness import ROOT

from commands.test_compare import fake_run, plan_file
from flcog.commands.cli import main
from flcog.commands.compare.plan import Cell, Table, cells, select
from flcog.commands.compare.report import text
from flcog.commands.compare.result_table import ResultTable
from flcog.commands.compare.table_file import read_table
from flcog.commands.compare.tuning import FILE, tune, with_choice

LR = "model.optimizer.lr"
ROWS: dict[str, Any] = {
    "A": {"arguments": {LR: 0.1}, "tune": {LR: [0.01, 0.1, 1.0]}, "columns": {"y": {LR: 0.3}}},
}


def table(folder: Path, **content: Any) -> Table:
    base = {"configs": [str(ROOT / "configs/quickstart.yaml")], "arguments": {"data.client_val": 0.2}, "seeds": [0, 1]}
    path = folder / "table.yaml"
    path.write_text(yaml.safe_dump({**base, "rows": ROWS, "columns": {"x": None, "y": None}, **content}))
    return read_table(path)


def option(cell: Cell, name: str) -> str:
    """The value of an option on a cell's command line. If it occurs several times, the last value counts."""
    return cell.arguments[len(cell.arguments) - cell.arguments[::-1].index(f"--{name}")]


def trained(cell: Cell) -> float:
    """The learning rate of a cell."""
    return float(option(cell, LR))


def diverge_at_once(cell: Cell) -> None:
    """Write a run that has diverged in round 1, without rows."""
    (cell.folder / "20260101-000000").mkdir(parents=True, exist_ok=True)
    (cell.folder / "20260101-000000/run.yaml").touch()
    cell.files.mark_finished("", diverged=True)


@pytest.mark.slow
def test_the_choice_is_by_validation_data_and_reported_with_the_whole_grid(tmp_path: Path) -> None:
    given, seen = table(tmp_path), []

    def train(_: Table, runs: Sequence[Cell]) -> list[Cell]:
        for cell in runs:
            seen.append((cell.setting, cell.seed, trained(cell)))
            # By accuracy on the test set, or by the rounds to a target on it, 0.01 would be chosen.
            val = {0.01: 0.5, 0.1: 0.6, 1.0: 0.7, 0.3: 0.4}[trained(cell)]
            target: dict[str, Any] = {
                "to_accuracy_0.2__rounds": [100 * val],
                "to_accuracy_0.2__up_bytes": [1],
                "to_accuracy_0.2__down_bytes": [1],
            }
            fake_run(cell, [1 - val], finished=True, val__accuracy=[val], comm__total_bytes=[100], **target)
        return []

    tune(given, tmp_path / "out", [], train)
    assert seen == [("x", 2, 0.01), ("x", 2, 0.1), ("x", 2, 1.0), ("y", 2, 0.3)], "the row fixes its rate in y"
    saved = yaml.safe_load((tmp_path / "out" / FILE).read_text())
    assert saved["chosen"] == {"A": {"x": {LR: 1.0}, "y": {}}} and saved["edges"] == [["A", "x", LR]]
    assert [line["validation"] for line in saved["grid"]] == [0.5, 0.6, 0.7, 0.4]
    assert saved["cost"]["runs"] == 4 and saved["cost"]["bytes"] == 400
    chosen = with_choice(given, tmp_path / "none", tmp_path / "out" / FILE)
    assert {(cell.setting, trained(cell)) for cell in cells(chosen, tmp_path, [])} == {("x", 1.0), ("y", 0.3)}
    assert "A · x: model.optimizer.lr 1.0 (at the edge of the grid). The search took 4 runs, 4 rounds" in chosen.tuned[0]
    assert "| A | x | 1.0 (edge of the grid) | 0.7000 | yes |" in chosen.grid
    assert "**The search for hyper-parameters**" in text(ResultTable(chosen, []), "std")
    assert with_choice(given, tmp_path / "none") == given


@pytest.mark.slow
def test_halving_stops_the_worse_half_once_all_methods_act(tmp_path: Path) -> None:
    """Of eight rounds, row A is halved after rounds 2 and 4. Row B, whose method starts after round 4, is halved after rounds 5 and 6."""
    tuned: dict[str, Any] = {"arguments": {LR: 0.1}, "tune": {LR: [0.01, 0.1, 0.2]}}
    late = {LR: 0.1, "trainer.callbacks.FedProx.start_round": 4}
    rows = {"A": tuned, "B": {**tuned, "arguments": late, "configs": [str(ROOT / "configs/methods/fedprox.yaml")]}}
    arguments = {"data.client_val": 0.2, "trainer.rounds": 8, "trainer.eval_every": 1}
    given, seen = table(tmp_path, rows=rows, columns={"x": None}, arguments=arguments, halving=True), []
    scores = {  # by round; in row A, 0.01 would win in the end but is the worst at first
        ("A", 0.01): [0, 0.1, 0, 0, 0, 0, 0, 1.0],
        ("A", 0.1): [0, 0.3, 0, 0.4, 0, 0, 0, 0],
        ("A", 0.2): [0, 0.2, 0, 0.5, 0, 0, 0, 0.6],
        ("B", 0.01): [],  # diverges in round 1
        ("B", 0.1): [0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5],
        ("B", 0.2): [0, 0, 0, 0, 0.6, 0.6, 0.6, 0.6],
    }

    def train(_: Table, runs: Sequence[Cell]) -> list[Cell]:
        for cell in runs:
            if not scores[cell.row[0], trained(cell)]:
                diverge_at_once(cell)
            elif not cell.finished:
                assert option(cell, "trainer.rounds") == "8", "a schedule may depend on the number of rounds"
                rounds, begun = cell.stop_after or 8, len(cell.history())
                seen.append((cell.row[0], trained(cell), begun, rounds))
                series: dict[str, Any] = {"val__accuracy": scores[cell.row[0], trained(cell)], "comm__total_bytes": [1] * 8}
                fake_run(cell, [0.0] * rounds, finished=rounds == 8, **series)
        return []

    saved = yaml.safe_load(tune(given, tmp_path / "out", [], train).read_text())
    rounds = {("A", 0.01): [0, 2], ("A", 0.1): [0, 2, 4], ("A", 0.2): [0, 2, 4, 8]}
    rounds |= {("B", 0.1): [0, 5, 6], ("B", 0.2): [0, 5, 6, 8]}
    assert sorted(seen) == [(*arm, *pair) for arm, ends in rounds.items() for pair in itertools.pairwise(ends)]
    assert saved["chosen"] == {"A": {"x": {LR: 0.2}}, "B": {"x": {LR: 0.2}}}
    stopped = {(line["row"], line[LR]): (line.get("stopped"), line.get("validation")) for line in saved["grid"]}
    assert stopped == {
        ("A", 0.01): (2, 0.1),
        ("A", 0.1): (4, 0.4),
        ("A", 0.2): (None, 0.6),
        ("B", 0.01): (5, None),
        ("B", 0.1): (6, 0.5),
        ("B", 0.2): (None, 0.6),
    }
    assert saved["cost"]["rounds"] == 2 + 4 + 8 + 6 + 8
    shown = with_choice(given, tmp_path / "out" / FILE).grid.splitlines()
    assert shown[0] == f"| Row | Setting | {LR} | Validation | Stopped after round | Chosen |"
    assert shown[2:6] == [
        "| A | x | 0.01 | 0.1000 | 2 |  |",
        "| A | x | 0.1 | 0.4000 | 4 |  |",
        "| A | x | 0.2 (edge of the grid) | 0.6000 |  | yes |",
        "| B | x | 0.01 | diverged | 5 |  |",
    ]
    seen.clear()
    assert yaml.safe_load(tune(given, tmp_path / "out", [], train).read_text()) == saved
    assert seen == [], "finished cells are reused"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"rows": {"A": None}}, "no row of table has tune"),
        (
            {"rows": {**ROWS, "B": {"tune": {LR: [0.1]}}}},
            r"unlike numbers of configurations \(A 3, B 1\): give each row the same",
        ),
        ({"tuning_seeds": [1]}, "tuning_seeds of table has 1, a seed of the table"),
        ({"arguments": {"data.client_val": 0.0}}, "A · x · seed 0 has none: set data.client_val"),
        ({"rows": {"A": {"tune": {LR: [7.0, 8.0]}}}}, "tune of row A lacks the row's own values of model.optimizer.lr"),
        (
            {"rows": {"A": {"tune": {"trainer.local_stps": [1, 2]}}}},
            r"^tune of row A: there is no option --trainer.local_stps. Did you mean '--trainer.local_steps'\?$",
        ),
        (
            {"rows": {"A": {"tune": {"model.optimizer.learning_rate": [0.1, 0.2]}}}},
            "^tune of row A: .* has no option 'learning_rate'.* It has .*lr",
        ),
        ({"rows": {"A": {"arguments": {"x": 1}, "tune": {LR: [0.1]}}}}, "A · x · seed 0: there is no option --x"),
        (
            {"rows": {"A": {"tune": {LR: [0.02, 0.02]}}}},
            "tune of row A has configurations that are the same run: list each value once",
        ),
        (
            {"rows": {"A": {"tune": {LR: 0.1}}}},
            "tune of row A in .* must be lists of values by option; model.optimizer.lr is 0.1",
        ),
    ],
)
def test_grids_that_are_refused(content: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        tune(table(tmp_path, **content), tmp_path / "out", [], lambda _, runs: [])


def test_bounds_come_after_the_search(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match=r"^2$"):
        main(["compare", str(plan_file(tmp_path, rows=ROWS)), "--bounds", "--tune", "--out", str(tmp_path / "out")])
    assert "give --tune first, and then the same command with --bounds instead" in capsys.readouterr().err


def test_a_search_in_which_everything_diverges_is_refused(tmp_path: Path) -> None:
    def train(_: Table, runs: Sequence[Cell]) -> list[Cell]:
        for cell in runs:
            diverge_at_once(cell)
        return []

    with pytest.raises(ValueError, match=r"^every configuration of row A in x diverged: add smaller values to its tune$"):
        tune(table(tmp_path), tmp_path / "out", [], train)


def test_a_choice_of_another_table_or_a_damaged_one_is_refused(tmp_path: Path) -> None:
    given = table(tmp_path)
    (tmp_path / FILE).write_text("table: other")
    with pytest.raises(ValueError, match="belongs to table other, not to table"):
        with_choice(given, tmp_path / FILE)
    (tmp_path / FILE).write_text("table: table")
    with pytest.raises(ValueError, match="is damaged"):
        with_choice(given, tmp_path / FILE)


def test_an_option_that_takes_the_place_of_values_to_try_is_refused(tmp_path: Path) -> None:
    """All configurations would be the same run, and the table's runs would not use the choice."""
    given = table(tmp_path, rows={"A": {"tune": {LR: [0.02, 0.1]}}}, columns={"x": None})
    for words in ([f"--{LR}", "0.3"], [f"--{LR}=0.3"], ["--model.init_args.optimizer.init_args.lr", "0.3"]):
        with pytest.raises(ValueError) as caught:
            tune(given, tmp_path / "out", words, lambda _, runs: [])
        named = words[0] if LR in words[0] else " ".join(words)
        said = f"tune of row A has configurations that are the same run: {named} after -- takes the place of values to try, leave it out"
        assert str(caught.value) == said


def search(given: Table, folder: Path) -> dict[str, Any]:
    """Search with scores that grow with the learning rate, and return the file's content."""

    def train(_: Table, runs: Sequence[Cell]) -> list[Cell]:
        for cell in runs:
            if not cell.finished:
                fake_run(cell, [0.5], finished=True, val__accuracy=[trained(cell)], comm__total_bytes=[100])
        return []

    return dict(yaml.safe_load(tune(given, folder, [], train).read_text()))


def test_a_search_of_some_rows_keeps_the_choices_of_the_others(tmp_path: Path) -> None:
    rows = {name: {"arguments": {LR: 0.02}, "tune": {LR: [0.02, 0.1]}} for name in "AB"}
    given = table(tmp_path, rows=rows, columns={"x": None, "y": None})
    whole = search(given, tmp_path / "out")
    assert whole["chosen"] == {name: {"x": {LR: 0.1}, "y": {LR: 0.1}} for name in "AB"} and whole["cost"]["runs"] == 8
    for names in (["A"], ["B", "y"]):
        again = search(select(given, names), tmp_path / "out")
        for part in ("grid", "edges", "searches"):
            assert sorted(again[part], key=str) == sorted(whole[part], key=str), (names, part)
        assert again["chosen"] == whole["chosen"] and again["cost"] == whole["cost"]
    older = {name: value for name, value in whole.items() if name != "searches"}
    (tmp_path / "out" / FILE).write_text(yaml.safe_dump(older))
    with pytest.raises(
        ValueError, match="of an earlier version, has no costs of the rows outside --only: give --tune without --only"
    ):
        search(select(given, ["A"]), tmp_path / "out")
    assert with_choice(given, tmp_path / "out" / FILE).rows["A"].columns["x"] == {LR: 0.1}, "it is still read"


def test_a_choice_of_a_search_with_other_settings_is_refused(tmp_path: Path) -> None:
    def changed(seeds: Sequence[int] = (2,), own: float = 0.02, values: Sequence[float] = (0.02, 0.1), **arguments: Any) -> Table:
        rows = {"A": {"arguments": {LR: own}, "tune": {LR: list(values)}}}
        options = {"data.client_val": 0.2} | {f"trainer.{name}": value for name, value in arguments.items()}
        return table(tmp_path, rows=rows, columns={"x": None}, arguments=options, tuning_seeds=list(seeds))

    search(changed(), tmp_path / "out")
    path = tmp_path / "out" / FILE
    for same in (changed(), changed(own=0.1), changed(logger=False)):
        assert with_choice(same, path).rows["A"].columns["x"] == {LR: 0.1}
    for other in (changed(local_steps=7), changed(values=[0.02, 0.1, 0.2]), changed(seeds=[3])):
        with pytest.raises(
            ValueError, match=r"tuned\.yaml: the search for A · x had other settings, values to try or seeds than"
        ):
            with_choice(other, path)
    with pytest.raises(ValueError, match="the search for A · x had other settings"):
        with_choice(changed(), path, extra=["--trainer.rounds", "3"])
