"""Options of single callbacks by name, on the command line, in a table's arguments and in configs."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from harness import ROOT

from flcog.commands.cli import main
from flcog.commands.compare.runs import runs_of
from flcog.commands.compare.table import read_table
from flcog.commands.config_file import adapted
from flcog.commands.shipped_configs import with_paths

QUICKSTART = str(ROOT / "configs" / "quickstart.yaml")
THREE = ["--trainer.callbacks+=FedProx", "--trainer.callbacks+=LocalModels", "--trainer.callbacks+=MOON"]


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command_line: None) -> None:
    monkeypatch.chdir(tmp_path)


def listed(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, dict[str, Any]]:
    """The callbacks of a run with their options, in order."""
    with pytest.raises(SystemExit, match=r"^0$"):
        main(["fit", "-c", QUICKSTART, *words, "--print_config"])
    callbacks = yaml.safe_load(capsys.readouterr().out)["trainer"]["callbacks"]
    return {each["class_path"].rpartition(".")[2]: each["init_args"] for each in callbacks}


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    with pytest.raises(SystemExit, match=r"^2$"):
        main(["fit", "-c", QUICKSTART, "--trainer.logger=false", *words])
    (line,) = (line for line in capsys.readouterr().err.splitlines() if line and not line.startswith("Seed set"))
    return line


def test_a_name_reaches_that_callback_alone(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--trainer.callbacks.FedProx.mu", "0.25", "--trainer.callbacks.LocalModels.start_round=3"]
    found = listed(capsys, *THREE, *words, "--trainer.callbacks.temperature=0.1")
    assert list(found) == ["FedProx", "LocalModels", "MOON"]
    assert [found["FedProx"]["mu"], found["MOON"]["mu"], found["MOON"]["temperature"]] == [0.25, 1.0, 0.1]
    assert [found[name]["start_round"] for name in found] == [0, 3, 0]


def test_a_single_callback_needs_no_list(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    found = listed(capsys, "--trainer.callbacks", "FedProx", "--trainer.callbacks.mu=0.5", "--trainer.callbacks+=MOON")
    assert list(found) == ["FedProx", "MOON"] and found["FedProx"]["mu"] == 0.5
    for one in ("FedProx", "{class_path: FedProx}"):
        (tmp_path / "one.yaml").write_text(f"trainer: {{callbacks: {one}}}")
        assert list(listed(capsys, "-c", "one.yaml")) == ["FedProx"]


@pytest.mark.slow
def test_what_one_callback_has_needs_no_name_wherever_it_stands(capsys: pytest.CaptureFixture[str]) -> None:
    """For example, ``--trainer.callbacks.mu`` with an observer after FedProx, and an option of the data inside a method."""
    leash = ["-c", str(ROOT / "configs/methods/fedwalk.yaml"), "--trainer.callbacks+=FedProx", "--trainer.callbacks+=LocalModels"]
    found = listed(capsys, *leash, "--trainer.callbacks.mu=0.5", "--trainer.callbacks.leash.batch_size=7")
    assert found["FedProx"]["mu"] == 0.5 and found["FedWalk"]["leash"]["init_args"]["batch_size"] == 7
    found = listed(capsys, *leash, "--trainer.callbacks.FedWalk.leash.batch_size=8", "--trainer.callbacks.FedWalk.tau=0.75")
    assert found["FedWalk"]["leash"]["init_args"]["batch_size"] == 8 and found["FedWalk"]["tau"] == 0.75


MISTAKES = {
    "--trainer.callbacks.mu=1": "'mu' fits 2 of them: name one",
    "--trainer.callbacks.FedPrix.mu=1": "FedProx, LocalModels, MOON, and none has 'FedPrix'|Did you mean 'FedProx'?",
    "--trainer.callbacks.FedProx.mu=lots": "trainer.callbacks.mu: |float|lots",
}


@pytest.mark.parametrize("word", MISTAKES)
def test_what_is_ambiguous_or_unknown_is_refused(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    line = refused(capsys, *THREE, word)
    assert line.startswith("flcog: error: ") and all(part in line for part in MISTAKES[word].split("|")), line


def test_twice_in_the_list_and_not_in_it(capsys: pytest.CaptureFixture[str]) -> None:
    twice = ["--trainer.callbacks+=RoundsToTarget", "--trainer.callbacks+=RoundsToTarget"]
    assert "fits 2 of them: name one" in refused(capsys, *twice, "--trainer.callbacks.RoundsToTarget.target=0.5")
    early = ["--trainer.callbacks.FedProx.mu=1", "--trainer.callbacks+=FedProx"]
    assert "the callbacks listed so far are none" in refused(capsys, *early)


def test_a_config_changes_what_an_earlier_one_lists(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "list.yaml").write_text("trainer: {callbacks: [FedProx, {class_path: MOON, init_args: {mu: 3}}]}")
    (tmp_path / "change.yaml").write_text("trainer: {rounds: 7, callbacks: {FedProx: {mu: 1e-1}, temperature: 2}}")
    found = listed(capsys, "-c", "list.yaml", "-c", "change.yaml", "--trainer.callbacks.FedProx.start_round=4")
    assert found["FedProx"] == {"mu": 0.1, "start_round": 4, "stop_round": None}
    assert (found["MOON"]["mu"], found["MOON"]["temperature"]) == (3.0, 2.0)
    assert "listed so far are none" in refused(capsys, "-c", "change.yaml")


def test_a_tables_arguments_name_callbacks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "arms.yaml").write_text("trainer: {callbacks: [FedProx, MOON]}")
    table = {"rows": {"A": {"configs": ["arms.yaml"], "arguments": {"trainer.callbacks.FedProx.start_round": 2}}}}
    (tmp_path / "table.yaml").write_text(yaml.safe_dump(table))
    (run,) = runs_of(read_table(tmp_path / "table.yaml"), tmp_path)
    found = listed(capsys, *run.command[1:])
    assert (found["FedProx"]["start_round"], found["MOON"]["start_round"]) == (2, 0)


def test_only_a_mapping_of_names_becomes_options_also_of_a_runs_directory(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    text = "trainer: {callbacks: {A: {b: {c: 1, d: {class_path: E}}}, f: null}}\nmodel: {x: 1}\n"
    path.write_text(text)
    options = [f"--trainer.callbacks.{each}" for each in ("A.b.c=1", 'A.b.d={"class_path": "E"}', "f=null")]
    assert with_paths(["-c", str(path), "--x"]) == with_paths(["-c", str(tmp_path), "--x"]) == ["-c", str(path), *options, "--x"]
    assert adapted(text, ()) == "trainer: {}\nmodel:\n  x: 1\n"
    for text in ("trainer: {callbacks: [A]}", "trainer: {callbacks+: {class_path: A}}"):
        path.write_text(text)
        assert with_paths([f"--config={path}"]) == [f"--config={path}"] and adapted(text, ()) == text
