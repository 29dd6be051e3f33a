"""Arms that are identical up to a round train these rounds only once, with the same results."""

import shutil
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from harness import ROOT, fit

from flcog.commands.cli import main
from flcog.commands.compare import trunks
from flcog.commands.compare.plan import Cell, cells
from flcog.commands.compare.resolved import resolve
from flcog.commands.compare.runner import Runner
from flcog.commands.compare.table_file import read_table
from flcog.commands.compare.trunks import share_rounds
from flcog.run.directory import LAST, kept_checkpoint
from flcog.run.metrics_rows import read_rows

METHODS = ROOT / "configs/methods"
COG = {"trainer.callbacks.FedCOG.start_round": 3, "trainer.callbacks.steps": 2, "trainer.callbacks.num_samples": 8}


def arm(*names: str, **arguments: Any) -> dict[str, Any]:
    """A row of the table. In the names of arguments, ``__`` becomes a dot, and ``trainer.`` comes first."""
    options = {f"trainer.{name.replace('__', '.')}": value for name, value in arguments.items()}
    return {"configs": [str(METHODS / f"{name}.yaml") for name in names], "arguments": options}


def planned(folder: Path, rows: Mapping[str, Any], **content: Any) -> tuple[dict[str, Cell], int]:
    """The table's cells by row, and the number of rounds that need not be trained again."""
    path = folder / "table.yaml"
    setting = {"trainer.rounds": 5, "trainer.local_steps": 2, "trainer.logger": False}
    path.write_text(
        yaml.safe_dump({"configs": [str(ROOT / "configs/quickstart.yaml")], "arguments": setting, "rows": dict(rows)} | content)
    )
    runs = cells(read_table(path), folder / "out", ["--trainer.rounds", "5"])
    saved = share_rounds(runs, resolve(runs))
    return {cell.row: cell for cell in runs}, saved


def trunk_of(cell: Cell) -> tuple[str, int] | None:
    return (cell.trunk.cell.row, cell.trunk.round) if cell.trunk else None


LATE = {"callbacks__start_round": 3}


@pytest.mark.slow
def test_arms_branch_from_one_that_gathers_what_they_need(tmp_path: Path) -> None:
    rows = {
        "FedAvg": None,
        "FedProx": arm("fedprox"),
        "FedCOG": arm("fedcog", callbacks__start_round=3),
        "balance": arm("fedcog", callbacks__start_round=3, callbacks__lambda_kd="balance"),
        "late": arm("fedprox", callbacks__start_round=3),
    }
    found, saved = planned(tmp_path, rows)
    assert {row: trunk_of(cell) for row, cell in found.items()} == {
        "FedAvg": ("FedCOG", 3),
        "FedProx": None,
        "FedCOG": None,
        "balance": ("FedCOG", 3),
        "late": ("FedCOG", 3),
    }
    assert saved == 9
    keep = ["--trainer.callbacks+=Checkpoint", "--trainer.callbacks.Checkpoint.keep_rounds", "[3]"]
    assert {row: list(cell.keep_options) for row, cell in found.items() if cell.keep_options} == {"FedCOG": keep}


def test_who_shares_more_rounds_branches_later(tmp_path: Path) -> None:
    rows = {"FedAvg": None, "three": arm("fedprox", callbacks__start_round=3), "four": arm("fedprox", callbacks__start_round=4)}
    found, saved = planned(tmp_path, rows)
    # FedAvg and "four" share four rounds, and "three" shares three rounds with both.
    assert saved == 7 and sorted(cell.trunk.round for cell in found.values() if cell.trunk) == [3, 4]
    for cell in found.values():
        seen = []
        while cell.trunk:
            assert cell.row not in seen
            seen.append(cell.row)
            cell = cell.trunk.cell


@pytest.mark.slow
def test_only_what_is_the_same_until_then_is_shared(tmp_path: Path) -> None:
    later = arm("fedprox", callbacks__start_round=3)
    rows = {
        "FedAvg": None,
        "other rate": {**later, "arguments": later["arguments"] | {"model.optimizer.lr": 0.5}},
        "watched": {**later, "arguments": later["arguments"] | {"trainer.callbacks+": "ClassAccuracy"}},
        "exchanges": arm("feddisco", callbacks__start_round=3),
        "SCAFFOLD": arm("scaffold"),
        "beside SCAFFOLD": arm("scaffold", "fedprox", callbacks__FedProx__start_round=3),
    }
    found, saved = planned(tmp_path, rows)
    assert saved == 3 and {row for row, cell in found.items() if cell.trunk} <= {"SCAFFOLD", "beside SCAFFOLD"}
    _, saved = planned(tmp_path, {"FedAvg": None, "late": later}, columns={"x": None, "y": {"arguments": {"data.batch_size": 8}}})
    assert saved == 6  # three rounds in each setting


MOON = {"callbacks__start_round": 3, "callbacks__projection": None}


def carried(cell: Cell) -> dict[str, Mapping[str, Any]]:
    return {part["class_path"].rpartition(".")[2]: part["init_args"] for part in cell.carried}


@pytest.mark.slow
def test_the_trunk_carries_what_others_gather(tmp_path: Path) -> None:
    """FedCOG and MOON both need their own records of the clients' last models at round 3; the run of these rounds collects both."""
    rows = {
        "SCAFFOLD": arm("scaffold"),
        "FedProx": arm("fedprox"),
        "FedCOG": arm("fedcog", **LATE),
        "MOON": arm("moon", **MOON),
        "FedCOG 2": arm("fedcog", **LATE, callbacks__steps=2),
        "MOON 2": arm("moon", **MOON, callbacks__mu=2.0, callbacks__stop_round=4),
        "later": arm("moon", callbacks__start_round=4, callbacks__projection=None),
        "over SCAFFOLD": arm("scaffold", "moon", callbacks__MOON__start_round=3, callbacks__projection=None),
        "over FedProx": arm("fedprox", "moon", callbacks__MOON__start_round=3, callbacks__MOON__projection=None),
    }
    found, saved = planned(tmp_path, rows)
    trunks = {row: trunk_of(cell) for row, cell in found.items()}
    assert saved == 3 * 6 and trunks["FedCOG"] is None
    assert all(trunks[row] == ("FedCOG", 3) for row in ("MOON", "FedCOG 2", "MOON 2", "later"))
    settings = carried(found["FedCOG"])["MOON"]
    assert (settings["projection"], settings["start_round"], settings["stop_round"]) == (None, 5, None)
    for name in ("SCAFFOLD", "FedProx"):
        assert {trunks[name], trunks[f"over {name}"]} in ({None, (name, 3)}, {None, (f"over {name}", 3)})
        assert not found[name].carried and not found[f"over {name}"].carried, "the one that gathers anyway is the trunk"


OWN = """
import dataclasses
import torch
import flcog


@dataclasses.dataclass(frozen=True)
class Counts(flcog.Method):
    strength: float = 0.5

    def active(self, round):
        return super().active(max(round, self.start_round))

    def init_client(self, params, buffers, client):
        return {"rounds": torch.zeros(())}


class Alone(Counts):
    excludes = {"FedCOG": "each of them wants to be alone"}
"""


@pytest.mark.slow
def test_what_cannot_be_carried_together_needs_a_trunk_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "trunk_methods.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)

    def own(name: str, **settings: Any) -> dict[str, Any]:
        part = {"class_path": f"trunk_methods.{name}", "init_args": {"start_round": 3, **settings}}
        return {"arguments": {"trainer.callbacks+": part}}

    rows = {"FedCOG": arm("fedcog", **LATE), "weak": own("Counts", strength=0.1), "strong": own("Counts", strength=0.9)}
    found, saved = planned(tmp_path, rows)
    assert saved == 3, "what each gathers may depend on its strength"
    assert {row: trunk_of(cell) for row, cell in found.items()} == {"FedCOG": None, "strong": ("FedCOG", 3), "weak": None}
    found, saved = planned(tmp_path, {"FedCOG": arm("fedcog", **LATE), "alone": own("Alone"), "other": own("Alone")})
    assert saved == 3 and trunk_of(found["other"]) == ("alone", 3) and not any(cell.carried for cell in found.values())


def test_a_run_goes_on_with_what_it_carried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found, _ = planned(tmp_path, rows := {"FedCOG": arm("fedcog", **LATE), "MOON": arm("moon", **MOON)})
    trunk, words = found["FedCOG"], []

    class Process:
        def __init__(self, command: list[str], **_: Any) -> None:
            words.append(command)

        def wait(self) -> int:
            return 2

    monkeypatch.setattr("flcog.commands.compare.training.subprocess.Popen", Process)
    trunk.files.claim()
    list(Runner(1).run([trunk]))
    (tmp_path / "out/FedCOG/seed0/20260101-000000/checkpoints").mkdir(parents=True)
    (tmp_path / "out/FedCOG/seed0/20260101-000000/checkpoints/last.ckpt").touch()
    (tmp_path / "out/FedCOG/seed0/20260101-000000/metrics.csv").write_text("round\n1\n")
    found, saved = planned(tmp_path, rows)
    assert saved == 3 and trunk_of(found["MOON"]) == ("FedCOG", 3), "it is on its way to round 3, with what MOON needs"
    (again,) = (cell for cell in cells(read_table(tmp_path / "table.yaml"), tmp_path / "out", []) if cell.row == "FedCOG")
    list(Runner(1).run([again]))
    carries = [word for word in words[0] if word.startswith("--trainer.callbacks+={")]
    assert len(carries) == 1 and '"flcog.callbacks.MOON"' in carries[0] and '"start_round": 5' in carries[0]
    assert carries[0] in words[1] and words[1][-2:] == ["--ckpt_path", "last"], "also where no trunks are wanted any more"
    (trunk.folder / "carried.yaml").unlink()
    found, saved = planned(tmp_path, rows)
    assert saved == 0, "it began without"


def test_a_checkpoint_that_is_there_already_is_taken(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = {"FedAvg": None, "late": arm("fedprox", **LATE)}
    run = tmp_path / "out/FedAvg/seed0/20260101-000000"
    (run / "checkpoints").mkdir(parents=True)
    (run / "metrics.csv").write_text("round\n1\n2\n3\n4\n5\n")
    (run.parent / "finished").touch()
    found, saved = planned(tmp_path, rows)
    assert saved == 0, "it is finished, and did not keep that round"
    kept_checkpoint(run, 3).touch()
    found, saved = planned(tmp_path, rows)
    assert saved == 0 and "is no readable flcog checkpoint" in capsys.readouterr().out, "it is damaged"
    trunks._is_whole.cache_clear()
    whole = fit(tmp_path / "whole", rounds=3).run_dir
    assert whole is not None
    shutil.copy(whole / LAST, kept_checkpoint(run, 3))
    found, saved = planned(tmp_path, rows)
    assert saved == 3 and trunk_of(found["late"]) == ("FedAvg", 3) and found["late"].trunk.run == run  # type: ignore[union-attr]


def test_runs_wait_for_the_rounds_that_they_share(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = {"FedAvg": None, "late": arm("fedprox", **LATE), "other": arm("scaffold")}
    found, _ = planned(tmp_path, rows)
    commands: dict[str, list[str]] = {}
    other_began = threading.Event()

    class Process:
        """The trunk finishes its first three rounds only after the arm that shares no rounds has started."""

        def __init__(self, command: list[str], **_: Any) -> None:
            self.row = Path(command[command.index("--trainer.default_root_dir") + 1]).parent.name
            commands[self.row] = command
            if self.row == "other":
                other_began.set()

        def wait(self) -> int:
            run = tmp_path / "out" / self.row / "seed0/20260101-000000"
            (run / "checkpoints").mkdir(parents=True)
            if self.row == "FedAvg":
                assert other_began.wait(20)
            (run / "metrics.csv").write_text("round\n3\n")
            if self.row == "FedAvg":
                kept_checkpoint(run, 3).touch()
                deadline = time.monotonic() + 20
                while "late" not in commands and time.monotonic() < deadline:  # starts before the trunk has ended
                    time.sleep(0.02)
            return 0

        def send_signal(self, number: int) -> None: ...

    monkeypatch.setattr("flcog.commands.compare.training.subprocess.Popen", Process)
    monkeypatch.setattr("flcog.commands.compare.runner.LOOK_EVERY", 0.02)
    runs = [found["late"], found["FedAvg"], found["other"]]
    for cell in runs:
        cell.files.claim()
    assert {cell.row: cell.error for cell, _ in Runner(2).run(runs)} == dict.fromkeys(rows)
    assert set(list(commands)[:2]) == {"FedAvg", "other"} and list(commands)[2] == "late"
    assert commands["late"][-4:] == ["--branch", str(tmp_path / "out/FedAvg/seed0/20260101-000000"), "--round", "3"]
    assert commands["FedAvg"][-3:] == list(found["FedAvg"].keep_options) and "--branch" not in commands["other"]


def test_a_trunk_that_fails_holds_nobody_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found, _ = planned(tmp_path, {"FedAvg": None, "late": arm("fedprox", **LATE)})
    commands = []

    class Process:
        def __init__(self, command: list[str], **_: Any) -> None:
            commands.append(command)

        def wait(self) -> int:
            return 2

    monkeypatch.setattr("flcog.commands.compare.training.subprocess.Popen", Process)
    runs = list(found.values())
    for cell in runs:
        cell.files.claim()
    assert len(list(Runner(1).run(runs))) == 2 and not any("--branch" in command for command in commands)


@pytest.mark.parametrize(
    ("content", "option", "shares"), [({}, [], True), ({"trunks": False}, [], False), ({}, ["--no-trunks"], False)]
)
def test_a_table_of_times_shares_nothing(
    content: Any, option: list[str], shares: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned(tmp_path, {"FedAvg": None, "late": arm("fedprox", **LATE)}, **content)
    trunks: list[bool] = []
    monkeypatch.setattr("flcog.commands.compare.command.fill", lambda *given: trunks.append(given[3]) or [])
    main(["compare", str(tmp_path / "table.yaml"), "--out", str(tmp_path / "out"), *option])
    assert trunks == [shares] and not read_table(ROOT / "configs/tables/fedcog-cost.yaml").trunks


@pytest.mark.slow
def test_the_table_is_that_of_runs_from_round_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = {
        "FedAvg": None,
        "FedCOG": {**arm("fedcog"), "arguments": COG},
        "late": arm("fedprox", **LATE, callbacks__mu=5.0),
        "MOON": arm("moon", **MOON, callbacks__mu=5.0),
    }
    planned(tmp_path, rows)
    words = ["compare", str(tmp_path / "table.yaml"), "--jobs", "2"]
    main([*words, "--out", str(tmp_path / "shared/runs"), "--", "--trainer.rounds", "5"])
    assert "3 of 4 runs branch from others: 9 rounds are not trained again" in capsys.readouterr().out
    main([*words, "--out", str(tmp_path / "straight/runs"), "--no-trunks", "--", "--trainer.rounds", "5"])
    for row in rows:
        shared, straight = (
            next((tmp_path / name / "runs" / row / "seed0").glob("*/metrics.csv")) for name in ("shared", "straight")
        )
        ours, theirs = (
            [{name: value for name, value in line.items() if not name.startswith("time/")} for line in read_rows(path)[0]]
            for path in (shared, straight)
        )
        assert ours == theirs and len(ours) == 5
        assert ("branch" in yaml.safe_load((shared.parent / "run.yaml").read_text())) == (row != "FedCOG")
