"""``flcog compare --reproduced``: a page with every table and figure of the papers, from runs and saved results."""

import itertools
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from harness import ROOT

import flcog.callbacks
from commands.comparisons import fake_run
from flcog.commands import shipped_configs
from flcog.commands.cli import main
from flcog.commands.compare.reproduced import write_page
from flcog.commands.compare.runs import runs_of
from flcog.commands.compare.table import read_mapping, read_table, select

PAPERS: dict[str, Any] = {
    "Paper": {
        "title": "A paper",
        "url": "https://example.org",
        "claims": [{"claim": "B gains", "table": "one", "row": "B", "cost": "4 h"}],
        "items": {
            "Table 1": {"shows": "arms"},
            "Table 2": {"shows": "more arms"},
            "Figure 1": {"shows": "an overview", "illustration": True},
            "Figure 2": {
                "shows": "the split",
                "command": "flcog partition",
                "published": "of 100",
                "ours": "of 99",
                "unstated": ["other colours"],
            },
        },
    }
}


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a paper, two tables that reproduce it, and a table that belongs to no paper."""
    tables = tmp_path / "configs/tables"
    tables.mkdir(parents=True)
    (tmp_path / "configs/papers.yaml").write_text(yaml.safe_dump(PAPERS, sort_keys=False))
    rows = {"rows": {"A": None, "B": None}, "seeds": [0, 1], "title": "Arms"}
    paper = {"reproduces": ["Paper, Table 1"], "deviations": ["Two seeds."], "published": {"A": {"": 50}, "B": {"": 90}}}
    paper |= {"margin": 2, "reason": "A test."}
    (tables / "one.yaml").write_text(yaml.safe_dump(rows | paper))
    (tables / "other.yaml").write_text(yaml.safe_dump(rows | {"reproduces": ["Paper, Table 1"], "deviations": []}))
    (tables / "own.yaml").write_text(yaml.safe_dump(rows))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(shipped_configs, "folder", lambda: tmp_path / "configs")
    return tmp_path


def train(clone: Path, table: str, scores: dict[tuple[str, int], float]) -> None:
    for run in runs_of(read_table(clone / f"configs/tables/{table}.yaml"), clone / "runs" / table):
        if (run.row, run.seed) in scores:
            fake_run(run, [scores[run.row, run.seed]], finished=True)


def page(*arguments: str) -> dict[str, list[str]]:
    """The lines of the page by the name of their table or item."""
    main(["compare", "--reproduced", *arguments])
    found: dict[str, list[str]] = {}
    for line in "".join(Path(name).read_text() for name in ("REPRODUCED.md", "results/not-run.md")).splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| "):
            in_table = len(cells) == 9 and not cells[8].startswith("`")
            found[cells[7].partition("]")[0].strip("[") if in_table else cells[1]] = cells
    return found


def test_nothing_has_been_run(clone: Path) -> None:
    found = page()
    link = "[one](../configs/tables/one.yaml)"
    assert found["one"] == ["Paper", "Table 1", "arms", "3 not run", "0 / 4", "", "", link, "D1"]
    assert found["other"][3:5] == ["none", "0 / 4"] and found["other"][8] == ""
    assert found["Table 2"] == ["Paper", "Table 2", "more arms", "none", "", "", ""]
    assert found["Figure 1"][3] == "nothing to reproduce"
    assert found["Figure 2"] == ["Paper", "Figure 2", "the split", "`flcog partition`", "of 100", "of 99", "S1"]
    assert found["own"][:3] == ["", "", "Arms"]
    assert found["B gains"][2:] == ["+40.00", "", "", "not run: 4 h", "", "Two seeds.", "`flcog compare one --only A B`"]
    assert not Path("docs/assets/reproduced.svg").exists()
    text = Path("REPRODUCED.md").read_text()
    assert "contradict the papers\n\n- **D1** Two seeds.\n\n" in text and "do not state\n\n- **S1** Other colours.\n" in text


def test_what_has_been_run_is_judged(clone: Path) -> None:
    train(clone, "one", {("A", 0): 0.5, ("A", 1): 0.5, ("B", 0): 0.5, ("B", 1): 0.5})
    train(clone, "other", {("A", 0): 0.5})
    found = page()
    # A reproduces its published score of 50. B contradicts its score of 90 and its gain of 40.
    assert found["one"][3:7] == ["1 reproduced, 2 contradicted", "4 / 4", "0, 1, one split", "2026-01-01"]
    assert found["B gains"][3:7] == ["+0.00", "-40.00 to -40.00", "contradicted", "2, one split"]
    lines = Path("results/verdicts.csv").read_text().splitlines()
    assert len(lines) == 4 and sum("contradicted" in line for line in lines) == 2
    assert found["other"][3:6] == ["none", "1 / 4", "0, one split"]


def test_a_control_table_does_not_count_the_verdicts_of_another_table_again(clone: Path) -> None:
    content = yaml.safe_load((clone / "configs/tables/one.yaml").read_text()) | {"reproduces": []}
    content["rows"]["control"] = {"arguments": {"trainer.rounds": 5}}
    content["published"]["control"] = {"": 50}
    (clone / "configs/tables/control.yaml").write_text(yaml.safe_dump(content))
    scores = {(row, seed): 0.5 for row in ("A", "B", "control") for seed in (0, 1)}
    for table in ("one", "control"):
        train(clone, table, scores)
    found = page()
    assert found["one"][3] == "1 reproduced, 2 contradicted"
    assert found["control"][3] == "1 reproduced, 3 counted above"
    lines = Path("results/verdicts.csv").read_text().splitlines()[1:]
    assert {line.split(",")[0] for line in lines if line.endswith(",control")} == {"control"} and len(lines) == 5


def test_the_figure_has_a_mark_for_each_judged_figure_and_is_drawn_again_byte_for_byte(clone: Path) -> None:
    content = yaml.safe_load((clone / "configs/tables/one.yaml").read_text())
    (clone / "configs/tables/one.yaml").write_text(yaml.safe_dump(content | {"exploratory": [0]}))
    train(clone, "one", {("A", 0): 0.49, ("A", 1): 0.5, ("B", 0): 0.52, ("B", 1): 0.5})
    page()
    before = Path("docs/assets/reproduced.svg").read_bytes()
    judged = Path("results/verdicts.csv").read_text().count("(exploratory)")
    assert before.count(b'id="mark-') == judged == 3 and b"(exploratory)" in before
    page()
    assert Path("docs/assets/reproduced.svg").read_bytes() == before


def test_one_seed_and_unfinished_runs(clone: Path) -> None:
    train(clone, "one", {("A", 0): 0.49, ("B", 0): 0.5})
    (clone / "runs/one/B/seed0/finished").unlink()
    assert page()["one"][3:5] == ["1 with 1 of 2 seeds, 2 not run", "1 / 4"]


def test_saved_results_count_and_give_the_same_page(clone: Path) -> None:
    train(clone, "one", {("A", 0): 0.49, ("A", 1): 0.51})
    page()
    before = Path("REPRODUCED.md").read_bytes()
    main(["compare", "configs/tables/one.yaml", "--show", "--save-results"])
    shutil.rmtree(clone / "runs")
    page()
    assert Path("REPRODUCED.md").read_bytes() == before and b"2 / 4" in before


@pytest.mark.slow
def test_the_page_in_the_repository_is_made_from_the_saved_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_page([], [tmp_path / "runs"], ROOT / "results", tmp_path / "page.md")
    assert (tmp_path / "page.md").read_bytes() == (ROOT / "REPRODUCED.md").read_bytes()
    for name in ("results/not-run.md", "results/verdicts.csv", "docs/assets/reproduced.svg"):
        assert (tmp_path / name).read_bytes() == (ROOT / name).read_bytes()


def test_what_cannot_be_asked(clone: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def complaint(*arguments: str) -> str:
        with pytest.raises(SystemExit):
            main(["compare", *arguments])
        return capsys.readouterr().err

    assert "takes one table and one --out, or several with --reproduced" in complaint("configs/tables/one.yaml", "own")
    assert "takes one table and one --out, or several with --reproduced" in complaint()


def test_our_list_of_the_papers() -> None:
    commands = {"fit", "partition", *(command.name for command in flcog.callbacks.COMMANDS)}
    papers = read_mapping(ROOT / "configs/papers.yaml")
    # Counted in the papers: the tables and figures, and the two sections of FedDisco's appendix that contain figures.
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


@pytest.mark.slow
def test_the_commands_of_the_claims_name_rows_and_columns_of_their_tables() -> None:
    commands = re.findall(r"`flcog compare (\S+) --only (.*?)`", (ROOT / "REPRODUCED.md").read_text())
    assert len(commands) == sum(len(paper["claims"]) for paper in read_mapping(ROOT / "configs/papers.yaml").values())
    for table, names in commands:
        assert len(select(read_table(ROOT / f"configs/tables/{table}.yaml"), shlex.split(names)).rows) == 2


COMMANDS = {
    item["command"]
    for paper in read_mapping(ROOT / "configs/papers.yaml").values()
    for item in paper["items"].values()
    if "command" in item
}


@pytest.mark.slow
@pytest.mark.usefixtures("command_line")
@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_the_papers_commands_are_accepted(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands with configs are only parsed, not run."""
    monkeypatch.chdir(tmp_path)
    program, *words = shlex.split(command)
    words += ["--print_config"] * ("-c" in words)
    if program == "python":
        subprocess.run([sys.executable, ROOT / words[0], *words[1:]], check=True, capture_output=True, timeout=120)
        return
    with pytest.raises(SystemExit, match=r"^0$"):
        main(words)


def test_runs_are_counted_not_the_columns_that_show_them(clone: Path) -> None:
    metrics = {"accuracy": "test/accuracy", "bytes": "comm/up_bytes"}
    content = {"rows": {"A": None, "B": None}, "seeds": [0, 1], "title": "Arms", "metrics": metrics}
    (clone / "configs/tables/own.yaml").write_text(yaml.safe_dump(content))
    train(clone, "own", {("A", 0): 0.5, ("A", 1): 0.5, ("B", 1): 0.5})
    assert page()["own"][4] == "3 / 4"
