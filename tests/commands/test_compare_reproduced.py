"""``flcog compare --reproduced``: a page with every table and figure of the papers, from runs and saved results."""

import itertools
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from harness import ROOT

import flcog.callbacks
from commands.test_compare import fake_run
from flcog.commands import shipped_configs
from flcog.commands.cli import main
from flcog.commands.compare.plan import apart, cells
from flcog.commands.compare.reproduced import DIFFERS, read_papers
from flcog.commands.compare.table_file import read_table

PAPERS: dict[str, Any] = {
    "Paper": {
        "title": "A paper",
        "url": "https://example.org",
        "items": {
            "Table 1": {"shows": "arms"},
            "Table 2": {"shows": "more arms"},
            "Figure 1": {"shows": "an overview", "illustration": True},
            "Figure 2": {"shows": "the split", "command": "flcog partition", "deviations": ["other colours"]},
        },
    }
}


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a paper and two tables of it, and one that is of none."""
    tables = tmp_path / "configs/tables"
    tables.mkdir(parents=True)
    (tmp_path / "configs/papers.yaml").write_text(yaml.safe_dump(PAPERS, sort_keys=False))
    rows = {"rows": {"A": None, "B": None}, "seeds": [0, 1], "title": "Arms"}
    paper = {"reproduces": ["Paper, Table 1"], "deviations": ["Two seeds."], "published": {"A": {"": 50}, "B": {"": 90}}}
    (tables / "one.yaml").write_text(yaml.safe_dump(rows | paper))
    (tables / "other.yaml").write_text(yaml.safe_dump(rows | {"reproduces": ["Paper, Table 1"], "deviations": []}))
    (tables / "own.yaml").write_text(yaml.safe_dump(rows))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(shipped_configs, "folder", lambda: tmp_path / "configs")
    return tmp_path


def run(clone: Path, table: str, scores: dict[tuple[str, int], float], extra: list[str], root: str = "runs") -> None:
    for cell in apart(cells(read_table(clone / f"configs/tables/{table}.yaml"), clone / root / table, extra)):
        if (cell.row, cell.seed) in scores:
            score = scores[cell.row, cell.seed]
            fake_run(cell, [score], finished=True)
            (cell.folder / "arguments.yaml").write_text(yaml.safe_dump(cell.arguments))


def page(*arguments: str) -> dict[str, list[list[str]]]:
    """The page's lines by the item that they begin with."""
    main(["compare", "--reproduced", *arguments])
    found: dict[str, list[list[str]]] = {}
    item = ""
    for line in Path("REPRODUCED.md").read_text().splitlines():
        if line.startswith("| ") and "| shows |" not in line:
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            item = cells[0] or (cells[1] and "own") or item
            found.setdefault(item, []).append(cells)
    return found


def test_nothing_has_been_run(clone: Path) -> None:
    found = page()
    assert found["Table 1"] == [
        ["Table 1", "arms", "`flcog compare one`", f"{DIFFERS} 1", "0 / 4", "not run"],
        ["", "", "`flcog compare other`", "as in the paper", "0 / 4", "not run"],
    ]
    assert found["Table 2"] == [["Table 2", "more arms", "none", "", "", "not run"]]
    assert found["Figure 1"][0][-1] == "nothing to reproduce"
    assert found["Figure 2"] == [["Figure 2", "the split", "`flcog partition`", f"{DIFFERS} 2", "", "by eye"]]
    assert found["own"] == [["", "Arms", "`flcog compare own`", "", "0 / 4", "not run"]]
    assert "1. Two seeds.\n2. Other colours.\n" in Path("REPRODUCED.md").read_text(), (
        "differences are listed once, below the table"
    )


def test_what_has_been_run_is_judged(clone: Path) -> None:
    run(clone, "one", {("A", 0): 0.49, ("A", 1): 0.51, ("B", 0): 0.5, ("B", 1): 0.51}, [])
    run(clone, "other", {("A", 0): 0.5}, [])
    first, second = page()["Table 1"]
    # A's figure lies in its interval; B's does not, nor does its gain of 40.
    assert first[4:] == ["4 / 4", "1 of 2 figures; 0 of 1 gains"]
    assert second[4:] == ["1 / 4", "no published figures: see its table and curves"]
    assert page("configs/tables/other.yaml")["Table 1"] == [["Table 1", "arms", *second[2:]]]


def test_one_seed_and_unfinished_runs(clone: Path) -> None:
    run(clone, "one", {("A", 0): 0.49, ("B", 0): 0.5}, [])
    (clone / "runs/one/B/seed0/finished").unlink()
    assert page()["Table 1"][0][4:] == ["1 / 4", "1 one seed; 1 not run"]


def test_runs_with_other_settings_count_for_nothing(clone: Path) -> None:
    run(clone, "one", {("A", 0): 0.49}, ["--trainer.rounds", "2", "--data.data_dir", "/here"])
    assert page()["Table 1"][0][4:] == ["0 / 4; others with `--trainer.rounds 2`", "not run"]
    # The same cell in another folder, as it should be; where the data lies is no setting.
    run(clone, "one", {("A", 0): 0.49}, ["--data.data_dir", "/here"], root="more")
    assert page("--out", "runs", "--out", "more")["Table 1"][0][4:] == [
        "1 / 4; others with `--trainer.rounds 2`",
        "1 one seed; 1 not run",
    ]
    # The table is changed.
    path = clone / "configs/tables/one.yaml"
    path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | {"arguments": {"trainer.lr": 1}}))
    assert page("--out", "more")["Table 1"][0][4:] == ["0 / 4; 1 before the table was changed", "not run"]


def test_saved_results_count(clone: Path) -> None:
    run(clone, "one", {("A", 0): 0.49, ("A", 1): 0.51}, [])
    expected = page()["Table 1"]
    main(["compare", "configs/tables/one.yaml", "--show", "--save-results"])
    shutil.rmtree(clone / "runs")
    assert page()["Table 1"] == expected and expected[0][4] == "2 / 4"
    # A trial with other settings does not take their place.
    run(clone, "one", {("A", 0): 0.1}, ["--trainer.rounds", "2"])
    assert page()["Table 1"][0][4] == "2 / 4; others with `--trainer.rounds 2`"


def test_what_cannot_be_asked(clone: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def complaint(*arguments: str) -> str:
        with pytest.raises(SystemExit):
            main(["compare", *arguments])
        return capsys.readouterr().err

    tables = ["configs/tables/one.yaml", "configs/tables/own.yaml"]
    assert "takes one table and one --out, or several with --reproduced" in complaint(*tables)
    assert "takes one table and one --out, or several with --reproduced" in complaint()
    assert "--reproduced trains nothing" in complaint("--reproduced", "--", "--trainer.rounds", "2")
    (clone / "configs/papers.yaml").write_text("Paper: {items: {Table 1: arms}}")
    assert "Paper must have a title and items, each with the key `shows`" in complaint("--reproduced")
    (clone / "configs/papers.yaml").write_text("Paper: {items: {Table 1: {shows: arms, of two}}}")
    assert "Paper, Table 1 has of two; it may have shows, command, deviations, illustration" in complaint("--reproduced")


def test_our_list_of_the_papers() -> None:
    commands = {"fit", "partition", *(command.name for command in flcog.callbacks.COMMANDS)}
    papers = read_papers(ROOT / "configs/papers.yaml")
    # Counted in the papers: tables and figures, and the two sections with figures of FedDisco's appendix.
    assert {name: len(paper["items"]) for name, paper in papers.items()} == {
        "FedCOG": 17,
        "FedDisco": 23,
        "Fedssyn": 20,
        "FedWalk": 8,
    }
    for paper in papers.values():
        for item in paper["items"].values():
            words = item.get("command", "flcog").split()
            for option, name in itertools.pairwise(words):
                assert option != "-c" or name in shipped_configs.names()
                assert option != "flcog" or name in commands


COMMANDS = {
    item["command"]
    for paper in read_papers(ROOT / "configs/papers.yaml").values()
    for item in paper["items"].values()
    if "command" in item
}


@pytest.mark.usefixtures("command_line")
@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_the_papers_commands_are_accepted(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that take configs are not run."""
    monkeypatch.chdir(tmp_path)
    words = shlex.split(command)[1:]
    if "-c" not in words:
        main(words)
        return
    with pytest.raises(SystemExit, match=r"^0$"):
        main([*words, "--print_config"])


def test_runs_are_counted_not_the_columns_that_show_them(clone: Path) -> None:
    metrics = {"accuracy": "test/accuracy", "bytes": "comm/up_bytes"}
    content = {"rows": {"A": None, "B": None}, "seeds": [0, 1], "title": "Arms", "metrics": metrics}
    (clone / "configs/tables/own.yaml").write_text(yaml.safe_dump(content))
    run(clone, "own", {("A", 0): 0.5, ("A", 1): 0.5, ("B", 1): 0.5}, [])
    assert page()["own"][0][4] == "3 / 4"
