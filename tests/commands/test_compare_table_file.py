"""Seeds, comparisons and published figures in a table's YAML file, and the command lines of its runs."""

import math
import shlex
import statistics
from pathlib import Path
from typing import Any

import pytest
import yaml
from harness import ROOT

from flcog.commands import shipped_configs
from flcog.commands.compare.plan import Table, cells, select
from flcog.commands.compare.published import Figure
from flcog.commands.compare.table_file import read_table, with_bounds

ROWS = {"A": None, "B": None, "C": None}
TABLES = sorted((ROOT / "configs/tables").glob("*.yaml"))


def table(folder: Path, **content: Any) -> Table:
    path = folder / "table.yaml"
    path.write_text(yaml.safe_dump({"rows": ROWS} | content))
    return read_table(path)


def test_what_is_not_said(tmp_path: Path) -> None:
    plain = table(tmp_path)
    assert plain.against == {"A": "A", "B": "A", "C": "A"}
    assert (plain.seeds, plain.varies_split, plain.confidence, plain.summary, plain.last) == ((0,), False, 0.95, "best", 5)
    assert (plain.over_rounds, plain.average, plain.reproduces, plain.deviations, plain.published) == (False, "", (), (), {})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rows: {A: , B: , A: }", "has 'A' twice, in line 1: keep one"),
        ("rows: {1: , '1': }", "has '1' twice"),
        (
            "rows: {A: }\narguments: {trainer.rounds: 3}\narguments: {trainer.local_steps: 5}",
            "has 'arguments' twice, in lines 2 and 3",
        ),
        (
            "rows: {A: }\ncolumns: {a: , a b: }\nmetrics: {b c: {metric: test/loss}, c: {metric: test/accuracy}}",
            "two pairs of a column and a metric are called 'a b c': rename one of them",
        ),
    ],
)
def test_no_part_of_a_table_is_lost(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "table.yaml"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        read_table(path)


def test_names_are_kept_as_they_are_written(tmp_path: Path) -> None:
    path = tmp_path / "table.yaml"
    path.write_text(
        "rows: {010: , 1_0: , no: , 2026-01-01: }\ncolumns: {0.10: &x {arguments: {trainer.rounds: 3}}, 0.1: {<<: *x}}"
    )
    read = read_table(path)
    assert list(read.rows) == ["010", "1_0", "no", "2026-01-01"] and list(read.columns) == ["0.10", "0.1"]
    assert read.columns["0.1"].arguments == {"trainer.rounds": 3}


def test_infinite_arguments_are_numbers_of_the_command(tmp_path: Path) -> None:
    given = {"model.x": math.inf, "model.y": -math.inf, "model.z": math.nan}
    words = cells(table(tmp_path, rows={"A": {"arguments": given}}), tmp_path, [])[0].common_arguments
    assert [yaml.safe_load(words[words.index(f"--model.{name}") + 1]) for name in "xy"] == [math.inf, -math.inf]
    assert math.isnan(yaml.safe_load(words[words.index("--model.z") + 1]))


def test_published_figures(tmp_path: Path) -> None:
    figures = {"A": {"x": 73, "all": [73.07, 0.08]}, "B": {"x": {"score": 5.5, "rounds": [12, 3], "seconds": 983, "bytes": 1e9}}}
    figures |= {"C": {"x": {"rounds": "> 100", "gain": "14 to 20"}, "all": {"gain": "-0.75 to 0.75"}}}
    read = table(tmp_path, columns={"x": None}, average="all", published=figures).published
    assert read["A"] == {"x": {"score": Figure(73)}, "all": {"score": Figure(73.07, 0.08)}}
    assert read["B"]["x"] == {"score": Figure(5.5), "rounds": Figure(12, 3), "seconds": Figure(983), "bytes": Figure(1e9)}
    assert read["C"]["x"] == {"rounds": Figure(100, beyond=True), "gain": Figure(17, within=3)}
    assert read["C"]["all"] == {"gain": Figure(0, within=0.75)}


@pytest.mark.parametrize(
    ("against", "expected"),
    [
        ("B", {"A": "B", "B": "B", "C": "B"}),
        ({"C": "B"}, {"A": "A", "B": "A", "C": "B"}),
    ],
)
def test_rows_are_compared_with_the_named_ones(against: Any, expected: dict[str, str], tmp_path: Path) -> None:
    assert table(tmp_path, against=against).against == expected


def test_a_row_has_arguments_of_its_own_in_single_columns(tmp_path: Path) -> None:
    """They come after the arguments of the column and the row, so that they take precedence."""
    columns = {"x": {"arguments": {"lr": 1}}, "y": None}
    rows = {"A": None, "B": {"arguments": {"lr": 2}, "columns": {"x": {"lr": 3, "mu": 4}}}}
    whole = table(tmp_path, rows=rows, columns=columns)
    words = {(cell.row, cell.column): cell.arguments[1:-4] for cell in cells(whole, tmp_path, [])}
    assert words == {
        ("A", "x"): ["--lr", "1"],
        ("B", "x"): ["--lr", "1", "--lr", "2", "--lr", "3", "--mu", "4"],
        ("A", "y"): [],
        ("B", "y"): ["--lr", "2"],
    }
    (tmp_path / "other.yaml").write_text(yaml.safe_dump({"rows": "table.yaml", "columns": {"x": None}}))
    assert read_table(tmp_path / "other.yaml").rows == whole.rows


def test_a_column_has_a_target(tmp_path: Path) -> None:
    whole = table(tmp_path, columns={"x": {"target": 0.97}, "y": None})
    assert {(cell.column, cell.target) for cell in cells(whole, tmp_path, [])} == {("x", 0.97), ("y", None)}
    with pytest.raises(ValueError, match=r"target of column x in .* must be a score such as 0\.97; got 'high'"):
        table(tmp_path, columns={"x": {"target": "high"}})
    with pytest.raises(ValueError, match=r"row A in .* may have configs .* and columns \(a mapping .*; got {'target': 1}"):
        table(tmp_path, rows={"A": {"target": 1}})


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"z": {"lr": 1}}, "row A in .* has columns z; the table has x"),
        ({"x": [1]}, "arguments of row A, x in .* must be options of flcog fit"),
        ([1], "columns of row A in .* must be columns with the row's arguments there"),
    ],
)
def test_what_a_row_may_not_say_of_columns(columns: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        table(tmp_path, rows={"A": {"columns": columns}}, columns={"x": None})


def test_a_seed_draws_the_split_where_it_is_to(tmp_path: Path) -> None:
    plain = cells(table(tmp_path, seeds=[4]), tmp_path, ["--x", "1"])[0]
    both = cells(table(tmp_path, seeds=[4], vary=["seed", "partition_seed"]), tmp_path, ["--x", "1"])[0]
    assert plain.folder == both.folder
    assert plain.arguments == ["fit", "--x", "1", "--seed_everything", "4", "--trainer.default_root_dir", str(plain.folder)]
    assert both.arguments == [*plain.arguments[:5], "--data.partition_seed", "4", *plain.arguments[5:]]


@pytest.mark.parametrize("extra", [["--data.partition_seed", "3"], ["--data.partition_seed=3"]])
def test_a_split_that_the_seeds_draw_is_not_given_too(extra: list[str], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="the table's seeds draw the split"):
        cells(table(tmp_path, vary=["seed", "partition_seed"]), tmp_path, extra)
    assert cells(table(tmp_path), tmp_path, extra)


@pytest.mark.parametrize(
    ("option", "remedy"), [("seed_everything", "give --seeds before --"), ("trainer.default_root_dir", "give --out before --")]
)
def test_options_that_the_table_sets_for_each_run_are_refused(option: str, remedy: str, tmp_path: Path) -> None:
    for words in ([f"--{option}", "9"], [f"--{option}=9"]):
        with pytest.raises(ValueError, match=f"^{option} is given, and the table sets it for each run: {remedy}"):
            cells(table(tmp_path), tmp_path, words)
    for content in ({"arguments": {option: 9}}, {"rows": {"A": {"columns": {"x": {option: 9}}}}, "columns": {"x": None}}):
        with pytest.raises(ValueError, match=f"^{option} is given"):
            cells(table(tmp_path, **content), tmp_path, [])


def test_part_of_a_table(tmp_path: Path) -> None:
    """No row is compared with a row that is left out, and the average is left out with any of its settings."""
    figures = {"A": {"x": 1, "all": 2}, "C": {"y": 3}}
    whole = table(tmp_path, columns={"x": None, "y": None}, average="all", against={"C": "B"}, published=figures)
    assert select(whole, ["A", "C"]).against == {"A": "A", "C": "A"} and select(whole, ["B", "C"]).against == {"B": "B", "C": "B"}
    assert select(whole, ["A", "C"]).average == "all"
    part = select(whole, ["A", "x"])
    assert part.average == "" and part.published == {"A": {"x": {"score": Figure(1)}}}


@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.stem)
def test_our_tables_fill_what_the_papers_have(path: Path) -> None:
    papers = yaml.safe_load((ROOT / "configs/papers.yaml").read_text())
    items = {f"{name}, {item}" for name, paper in papers.items() for item in paper["items"]}
    table = read_table(path)
    assert set(table.reproduces) <= items
    # FedDisco reports five trials, Fedssyn three, and the others no number. FedCOG's Table 1 needs five seeds to decide its gains.
    for paper in {item.partition(",")[0] for item in table.reproduces}:
        assert len(table.seeds) == (5 if paper == "FedDisco" or path.stem == "fedcog" else 3)


MAIN_TABLES = {"fedcog": ["fedcog"], "feddisco": ["feddisco", "feddisco-cinic10", "feddisco-ham10000"]}


def _spreads(table: Table) -> list[float]:
    """The paper's ±. A figure that appears beside two of our rows counts once."""
    cells = {
        (column, *figure) for row in table.published.values() for column, figures in row.items() for figure in figures.items()
    }
    return [figure.spread for _, _, figure in cells if figure.spread is not None]


def _scores_are_shares(table: Table) -> bool:
    columns = {column for cells in table.published.values() for column in cells} & table.columns.keys()
    metrics = {table.metric, *(table.columns[column].metric for column in columns)}
    return not any(metric and metric.endswith(("loss", "variance")) for metric in metrics)


@pytest.mark.parametrize("path", [path for path in TABLES if read_table(path).published], ids=lambda path: path.stem)
def test_our_margins_follow_the_rule_of_the_documentation(path: Path) -> None:
    table = read_table(path)
    figures = [figure for cells in table.published.values() for figure in cells.values()]
    quantities = {"score" if name == "gain" else name for figure in figures for name in figure} & {"score", "rounds", "saved"}
    assert table.reason and "summary" in yaml.safe_load(path.read_text()) and table.margins.keys() == quantities
    assert table.margins.get("rounds", 1.5) == 1.5 and table.margins.get("saved", 5) == 5
    spreads = [
        spread
        for paper, names in MAIN_TABLES.items()
        if path.stem.startswith(paper)
        for name in names
        for spread in _spreads(read_table(path.with_name(f"{name}.yaml")))
    ] or _spreads(table)
    if not _scores_are_shares(table):
        median = statistics.median(figure["score"].value for figure in figures)
        assert table.margins["score"] == pytest.approx(0.05 * median, rel=0.05)
    elif "score" in quantities:
        assert table.margins["score"] == pytest.approx(max(1, 4 * statistics.median(spreads)) if spreads else 2, abs=0.05)


@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.stem)
def test_the_command_at_the_head_is_of_its_table(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # no config is here, so the table is found by its name
    words = shlex.split(path.read_text().splitlines()[0].removeprefix("# "))
    own = words[3 : words.index("--") if "--" in words else None]
    assert words[:2] == ["flcog", "compare"] and Path(shipped_configs.find(words[2], within="tables")) == path
    assert own[:1] in ([], ["--only"])
    select(read_table(path), own[1:])


@pytest.mark.parametrize(
    "path",
    [path for path in TABLES if "studies/fedssyn-cifar10" in path.read_text() and not path.stem.endswith("scripts")],
    ids=lambda path: path.stem,
)
def test_fedssyns_local_steps_are_those_of_its_text(path: Path) -> None:
    """The paper's text says 10 n_i / 256 steps for client i with n_i training images. The authors' scripts count epochs instead."""
    plan = read_table(path)
    for column in plan.columns.values():
        options = {"data.num_clients": 10, "trainer.local_steps": 195, **plan.common.arguments, **column.arguments}
        images = 50_000 * (1 - options.get("data.val_fraction", 0)) / options["data.num_clients"]
        assert options["trainer.local_steps"] == round(10 * images / 256)


def test_the_bounds_are_rows_of_any_table(tmp_path: Path) -> None:
    bounded = with_bounds(read_table(ROOT / "configs/tables/feddisco.yaml"))
    assert list(bounded.rows)[-2:] == ["Centralized", "Local"] and bounded.against["Local"] == "FedAvg"
    runs = [cell for cell in cells(select(bounded, ["Local", "CIFAR-10 NIID-1"]), tmp_path, []) if cell.seed == 0]
    assert [(cell.row, str(ROOT / "configs/methods/local.yaml") in cell.arguments) for cell in runs] == [("Local", True)]
    assert with_bounds(bounded) == bounded
