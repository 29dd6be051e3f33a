"""The tables of ``flcog compare``: their YAML files, the parts of them that are asked for, and the command lines of their runs."""

import math
import re
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from harness import ROOT

from commands.comparisons import TABLES, table, table_file
from flcog.commands import shipped_configs
from flcog.commands.cli import main
from flcog.commands.compare.runs import runs_of
from flcog.commands.compare.table import Figure, read_table, select, with_bounds
from flcog.core.monitor import mode_of

PLAIN: dict[str, Any] = {"configs": [], "rows": {"A": None, "B": None, "C": None}}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"- a\n- b\n", r"table.yaml must be a mapping of names; got \['a', 'b'\]"),
        (b"rows: ", "names no rows: a table has `rows`"),
        (b"rows: {A: }\ncolumns: nowhere.yaml", "there is no file .*nowhere.yaml: give a table's YAML"),
        (b"rows: {A: , B: , A: }", "has 'A' twice, in line 1: keep one"),
        (b"rows: {A: {target: 1}}", r"table.yaml: .*'target' is not (accepted|expected)"),
        (b"rows: {A: {configs: base.yaml}}", r"table.yaml: (rows\.)?configs: Expected a tuple.*base.yaml"),
        (b"rows: {A: {configs: [nowhere.yaml]}}", "names .*nowhere.yaml, which is no file; paths are relative to"),
        (b"rows: {A: {columns: {z: {lr: 1}}}}\ncolumns: {x: }", "rows in .* have options in column z; the table has x"),
        (b"rows: {A: }\nsummary: median", "table.yaml: summary: "),
        (b"rows: {A: }\nagainst: {A: B}", "against in .* must be a row, or rows by the rows to compare; got 'B'"),
        (b"rows: {A: }\npublished: {C: {}}", "names 'C', which is neither a row nor a column"),
        (b"rows: {A: }\npublished: {A: {'': {scores: 1}}}", "table.yaml: published: Unexpected keys: {'scores'}"),
        (b"rows: {A: }\npublished: {A: {'': 7O}}", "published: Not of type Figure: could not convert string to float: '7O'"),
        (b"rows: {a/b: , a b: }", "a/b · seed 0 and a b · seed 0 would both be run in"),
        (b"rows: {A: {arguments: {seed_everything: 3}}}", "seed_everything is given, and the table sets it for each run"),
    ],
)
def test_malformed_tables_are_one_line(content: bytes, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "table.yaml").write_bytes(content)
    with pytest.raises(SystemExit) as exit:
        main(["compare", str(tmp_path / "table.yaml"), "--out", str(tmp_path / "out")])
    error = capsys.readouterr().err
    assert exit.value.code == 2 and error.startswith("flcog: error: ") and error.count("\n") == 1
    assert re.search(message, error) and not (tmp_path / "out").exists()


def test_names_are_kept_as_they_are_written(tmp_path: Path) -> None:
    path = tmp_path / "table.yaml"
    columns = "{0.10: &x {arguments: {trainer.rounds: 3}}, 0.1: {<<: *x}}"
    path.write_text(f"rows: {{010: , 1_0: , no: , 2026-01-01: }}\nseeds: [1, 0, 1]\ncolumns: {columns}")
    read = read_table(path)
    assert list(read.rows) == ["010", "1_0", "no", "2026-01-01"] and list(read.columns) == ["0.10", "0.1"]
    assert read.columns["0.1"].arguments == {"trainer.rounds": 3} and read.seeds == (1, 0)


def test_published_figures(tmp_path: Path) -> None:
    figures: dict[str, Any] = {"A": {"x": 73, "all": [73.07, 0.08]}, "B": {"x": {"score": 5.5, "rounds": [12, 3], "bytes": 1e9}}}
    figures |= {"C": {"x": {"rounds": "> 100", "gain": "14 to 20"}, "all": {"gain": "-0.75 to 0.75"}}}
    read = table(tmp_path, **PLAIN, columns={"x": None}, overall={"all": "mean"}, published=figures).published
    assert read["A"] == {"x": {"score": Figure(73)}, "all": {"score": Figure(73.07, 0.08)}}
    assert read["B"]["x"] == {"score": Figure(5.5), "rounds": Figure(12, 3), "bytes": Figure(1e9)}
    assert read["C"]["x"] == {"rounds": Figure(100, beyond=True), "gain": Figure(17, within=3)}
    assert read["C"]["all"] == {"gain": Figure(0, within=0.75)}


def test_columns_of_several_metrics(tmp_path: Path) -> None:
    """A target is about the first metric, which may have a second column of fewer rounds."""
    metrics = {"test": "test/accuracy", "loss": "test/loss", "early": {"metric": "test/accuracy", "round": 1, "summary": "last"}}
    plan = table(tmp_path, columns={"x": {"target": 0.6}, "y": None}, metrics=metrics)
    targets = {name: view.target for name, view in plan.views.items()}
    assert targets == {"x test": 0.6, "x loss": None, "x early": 0.6, "y test": None, "y loss": None, "y early": None}
    early = plan.views["y early"]
    assert (early.column, early.metric, early.round, early.summary) == ("y", "test/accuracy", 1, "last")
    assert len(runs_of(plan, tmp_path)) == 4 and list(select(plan, ["early", "y"]).views) == ["y early"]


@pytest.mark.parametrize(
    ("against", "expected"),
    [("B", {"A": "B", "B": "B", "C": "B"}), ({"C": "B"}, {"A": "A", "B": "A", "C": "B"})],
)
def test_rows_are_compared_with_the_named_ones(against: Any, expected: dict[str, str], tmp_path: Path) -> None:
    assert table(tmp_path, **PLAIN, against=against).against == expected


def test_part_of_a_table(tmp_path: Path) -> None:
    """No row is compared with a row that is left out, gains over it do not count, and the average goes with any of its columns."""
    figures = {"A": {"x": 1, "all": 2}, "C": {"y": {"score": 3, "gain": 4}}}
    whole = table(
        tmp_path, **PLAIN, columns={"x": None, "y": None}, overall={"all": "mean"}, against={"C": "B"}, published=figures
    )
    assert select(whole, ["A", "C"]).against == {"A": "A", "C": "A"} and select(whole, ["B", "C"]).against == {"B": "B", "C": "B"}
    assert select(whole, ["A", "C"]).overall == {"all": "mean"} and select(whole, ["A", "x"]).overall == {}
    assert select(whole, ["B", "C"]).figures("C", "y").keys() == {"score", "gain"}
    assert select(whole, ["A", "C"]).figures("C", "y") == {"score": Figure(3)}
    with pytest.raises(ValueError, match="--only D: the table has the rows A B C and the columns x 'a b'"):
        select(replace(whole, columns={"x": whole.columns["x"], "a b": whole.columns["y"]}), ["D"])


def test_the_bounds_are_rows_of_any_table(tmp_path: Path) -> None:
    bounded = with_bounds(read_table(ROOT / "configs/tables/feddisco.yaml"))
    assert list(bounded.rows)[-2:] == ["Centralized", "Local"] and bounded.against["Local"] == "FedAvg"
    runs = [run for run in runs_of(select(bounded, ["Local", "CIFAR-10 NIID-1"]), tmp_path) if run.seed == 0]
    assert [(run.row, str(ROOT / "configs/methods/local.yaml") in run.command) for run in runs] == [("Local", True)]


# Command lines ------------------------------------------------------------------------------------------------------------------------


def test_command_lines(tmp_path: Path) -> None:
    columns = {"x y": {"arguments": {"data.fractions": [0.5, 1]}}}
    path = table_file(tmp_path, arguments={"trainer.rounds": 9}, columns=columns, seeds=[3])
    _, run = runs_of(read_table(path), tmp_path / "out", ["--trainer.rounds", "5"])
    assert run.command == [
        *("fit", "-c", str(tmp_path / "base.yaml"), "-c", str(tmp_path / "arm.yaml")),
        *("--trainer.rounds", "9", "--data.fractions", "[0.5, 1]", "--trainer.rounds", "5"),
        *("--seed_everything", "3", "--trainer.default_root_dir", str(tmp_path / "out" / "x-y" / "B" / "seed3")),
    ]


def test_a_row_has_arguments_of_its_own_in_single_columns(tmp_path: Path) -> None:
    """They come after the arguments of the column and the row, so that they take precedence."""
    columns = {"x": {"arguments": {"lr": 1}}, "y": None}
    rows = {"A": None, "B": {"arguments": {"lr": 2}, "columns": {"x": {"lr": 3, "mu": math.inf}}}}
    whole = table(tmp_path, configs=[], rows=rows, columns=columns)
    words = {(run.row, run.column): list(run.words) for run in runs_of(whole, tmp_path)}
    assert words == {
        ("A", "x"): ["--lr", "1"],
        ("B", "x"): ["--lr", "1", "--lr", "2", "--lr", "3", "--mu", ".inf"],
        ("A", "y"): [],
        ("B", "y"): ["--lr", "2"],
    }
    (tmp_path / "other.yaml").write_text(yaml.safe_dump({"rows": "table.yaml", "columns": {"x": None}}))
    assert read_table(tmp_path / "other.yaml").rows == whole.rows


def test_a_seed_draws_the_split_where_it_is_to(tmp_path: Path) -> None:
    both = table(tmp_path, configs=[], seeds=[4], vary=["seed", "partition_seed"])
    run = runs_of(both, tmp_path, ["--x", "1"])[0]
    assert run.command[:7] == ["fit", "--x", "1", "--seed_everything", "4", "--data.partition_seed", "4"]
    for words in (["--data.partition_seed", "3"], ["--data.partition_seed=3"]):
        with pytest.raises(ValueError, match=r"^data\.partition_seed is given, and the table sets it for each run"):
            runs_of(both, tmp_path, words)
        assert runs_of(table(tmp_path), tmp_path, words)
    for option in ("seed_everything", "trainer.default_root_dir"):
        with pytest.raises(ValueError, match=f"^{option} is given, and the table sets it for each run"):
            runs_of(table(tmp_path), tmp_path, [f"--{option}=9"])


@pytest.mark.parametrize("name", ["..", "a/b", "/etc", "../../x"])
def test_names_stay_below_out(name: str, tmp_path: Path) -> None:
    (tmp_path / "table.yaml").write_text(f"rows: {{'{name}': }}\ncolumns: {{'{name}': }}")
    (run,) = runs_of(read_table(tmp_path / "table.yaml"), out := tmp_path / "out")
    assert len(run.folder.relative_to(out).parts) == 3 and run.folder.resolve().is_relative_to(out.resolve())


# The tables that come with flcog ------------------------------------------------------------------------------------------------------


PAPERS = yaml.safe_load((ROOT / "configs/papers.yaml").read_text())
ITEMS = {f"{name}, {item}" for name, paper in PAPERS.items() for item in paper["items"]}


@pytest.mark.slow
@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.stem)
def test_every_table_of_ours_is_read(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its metrics tell which values are better, its items are the papers', and the command at its head names it and parts of it."""
    plan = read_table(path)
    assert set(plan.reproduces) <= ITEMS
    assert len(runs_of(plan, tmp_path)) == len(plan.rows) * len(plan.columns) * len(plan.seeds)
    assert all(view.metric is None or mode_of(view.metric) for view in plan.views.values())
    noted = {view.summary for view in plan.views.values() if (view.metric or "").endswith("_at_best")}
    assert noted <= {"last"}, "what was noted at the best evaluation is the last that was noted"
    monkeypatch.chdir(tmp_path)  # no config is here, so the table is found by its name
    words = shlex.split(path.read_text().splitlines()[0].removeprefix("# ").removeprefix("PYTHONPATH=studies "))
    own = words[3 : words.index("--") if "--" in words else None]
    assert words[:2] == ["flcog", "compare"] and Path(shipped_configs.find(words[2], within="tables")) == path
    assert own[:1] in ([], ["--only"])
    select(plan, own[1:])


@pytest.mark.parametrize(
    "path",
    [path for path in TABLES if "studies/fedssyn-cifar10" in path.read_text() and not path.stem.endswith("scripts")],
    ids=lambda path: path.stem,
)
def test_fedssyns_local_steps_are_those_of_its_text(path: Path) -> None:
    """The paper's text says 10 n_i / 256 steps for client i with n_i training images. The authors' scripts count epochs instead."""
    plan = read_table(path)
    for column in plan.columns.values():
        options = {"data.num_clients": 10, "trainer.local_steps": 195, **plan.arguments, **column.arguments}
        images = 50_000 * (1 - options.get("data.val_fraction", 0)) / options["data.num_clients"]
        assert options["trainer.local_steps"] == round(10 * images / 256)
