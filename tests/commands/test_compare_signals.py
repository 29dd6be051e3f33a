"""``flcog compare`` and its runs: runs end with the comparison, no run has two writers, and the same command continues."""

import csv
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
import yaml
from harness import ROOT, fit

from commands.test_compare import fake_run
from flcog.callbacks import EarlyStopping, StopAfter
from flcog.commands.cli import main
from flcog.commands.compare.folder import OUTPUT
from flcog.commands.compare.plan import Cell, cells
from flcog.commands.compare.runner import Runner
from flcog.commands.compare.table_file import read_table
from flcog.commands.compare.training import conclude, start
from flcog.core import child_processes as processes
from flcog.core.files import RUN_REMEDY
from flcog.core.writer_lock import WriterLock

ORPHAN = """
import importlib.util, pathlib, signal, sys, time
spec = importlib.util.spec_from_file_location("processes", {module!r})
processes = importlib.util.module_from_spec(spec)
spec.loader.exec_module(processes)
saved = pathlib.Path({folder!r}, "saved")
processes.GRACE = 0.3
signal.signal(signal.SIGTERM, lambda *_: saved.touch())  # and does not end by itself
processes.end_with_parent()
pathlib.Path({folder!r}, "ready").touch()
while True:
    time.sleep(0.05)
"""


def wait_for(condition: Callable[[], Any], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)


def table(folder: Path) -> Path:
    path = folder / "table.yaml"
    path.write_text("{rows: {A: , B: }}")
    return path


class Run:
    """A stand-in for a run. It sends a signal to the comparison and ends when it receives one."""

    started: list["Run"] = []
    sends, says = 0, b""

    def __init__(self, command: list[str], stdout: Any, **options: Any) -> None:
        self.heard: list[int] = []
        self._told = threading.Event()
        self.started.append(self)
        stdout.write(self.says)

    def send_signal(self, number: int) -> None:
        self.heard.append(number)
        self._told.set()

    def wait(self) -> int:
        if self.sends:
            os.kill(os.getpid(), self.sends)
            assert self._told.wait(20)
        return 75


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[Run]:
    monkeypatch.setattr("flcog.commands.compare.training.subprocess.Popen", Run)
    monkeypatch.setattr(Run, "started", [])
    return Run.started


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1"])
def test_a_signal_goes_to_the_runs_and_no_more_are_begun(
    name: str, tmp_path: Path, runs: list[Run], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    number = getattr(signal, name)
    monkeypatch.setattr(Run, "sends", number)
    before = signal.getsignal(number)
    with pytest.raises(SystemExit) as stop:
        main(["compare", str(table(tmp_path)), "--out", str(tmp_path / "out")])
    assert stop.value.code == (130 if name == "SIGINT" else 75) and signal.getsignal(number) is before
    assert [run.heard for run in runs] == [[number]]
    output = capfd.readouterr()
    assert "0 of 2 runs finished. The same command continues the others" in output.out and "failed" not in output.out
    assert "current runs are saved and stop, and no further runs start" in output.err


def test_what_another_process_trains_is_no_failure(
    tmp_path: Path, runs: list[Run], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """This holds if another comparison has locked the cell, and if a run finds that an orphaned process has locked the run itself."""
    writer = WriterLock()
    (tmp_path / "out/A/seed0").mkdir(parents=True)
    assert writer.take(tmp_path / "out/A/seed0") is None
    busy = "is being trained by process 7 on host since 2026-01-01 00:00:00"
    monkeypatch.setattr(Run, "says", f"flcog: error: x {busy}: wait until that has ended or stop it, or start\n".encode())
    with pytest.raises(SystemExit) as stop:
        main(["compare", str(table(tmp_path)), "--out", str(tmp_path / "out")])
    writer.release()
    output = capsys.readouterr()
    assert stop.value.code == 75 and len(runs) == 1 and not output.err
    assert f"A · seed 0: {tmp_path}/out/A/seed0 is being trained by process {os.getpid()} on" in output.out
    assert f"B · seed 0: x {busy} (" in output.out
    assert "2 of 2 runs belong to another process: give the same command again when it has ended" in output.out


def test_what_another_comparison_has_finished_meanwhile_is_not_run_again(tmp_path: Path, runs: list[Run]) -> None:
    both = cells(read_table(table(tmp_path)), tmp_path / "out", [])
    for cell in both:
        fake_run(cell, [0.5], finished=True)
    assert [cell.error for cell, _ in Runner(1).run(both)] == [None, None] and not runs


@pytest.mark.slow
def test_a_process_ends_with_the_one_that_started_it(tmp_path: Path) -> None:
    """It is asked to save first, and killed if it does not end."""
    child = ORPHAN.format(module=str(Path(processes.__file__)), folder=str(tmp_path))
    environment = f"{{**os.environ, {processes.PARENT!r}: str(os.getpid())}}"
    parent = subprocess.Popen(
        [
            sys.executable,
            "-c",
            f"import os, subprocess; subprocess.run([{sys.executable!r}, '-c', {child!r}], env={environment})",
        ],
        stdout=subprocess.PIPE,
    )
    wait_for((tmp_path / "ready").exists)
    assert not (tmp_path / "saved").exists()
    parent.kill()
    assert parent.stdout is not None and parent.stdout.read() == b""  # returns when the last process with this pipe has ended
    assert (tmp_path / "saved").exists()
    parent.wait()


def test_only_what_asked_for_it_is_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    processes.end_with_parent()
    with processes.starting_processes():
        assert os.environ[processes.PARENT] == str(os.getpid())
    assert processes.PARENT not in os.environ and "end-with-parent" not in [thread.name for thread in threading.enumerate()]


SETTINGS = ["--trainer.rounds", "6", "--trainer.local_steps", "2", "--trainer.logger", "false", "--trainer.accelerator", "cpu"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["SIGKILL", "SIGTERM"])
@pytest.mark.parametrize("devices", [1, 2])
def test_a_killed_comparison_goes_on_and_leaves_no_orphan(name: str, devices: int, tmp_path: Path) -> None:
    tables = ROOT / "configs/tables/digits.yaml"

    def command(out: str) -> list[str]:  # separate folders, because tables under one root reuse runs
        options = ["--only", "FedAvg", "Dirichlet(0.1)", "--", *SETTINGS, "--trainer.devices", str(devices)]
        return [sys.executable, "-m", "flcog", "compare", str(tables), "--out", str(tmp_path / out / "digits"), *options]

    def rows(out: str) -> list[list[tuple[str, str]]]:
        paths = sorted((tmp_path / out).glob("digits/*/*/*/*/metrics.csv"), key=lambda path: path.stat().st_mtime_ns)
        with paths[-1].open(newline="") as file:
            return [[(key, value) for key, value in row.items() if not key.startswith("time/")] for row in csv.DictReader(file)]

    def alive() -> list[str]:
        listed = subprocess.run(["ps", "-eo", "pid,args"], capture_output=True, text=True, check=True).stdout
        return [line for line in listed.splitlines() if str(tmp_path / "killed") in line]

    subprocess.run(command("whole"), check=True, stdout=subprocess.DEVNULL)
    process = subprocess.Popen(command("killed"), stdout=subprocess.DEVNULL)
    wait_for(
        lambda: any(len(path.read_text().splitlines()) > 2 for path in (tmp_path / "killed").glob("digits/*/*/*/*/metrics.csv"))
    )
    process.send_signal(getattr(signal, name))
    process.wait()
    wait_for(lambda: not alive(), 40)
    subprocess.run(command("killed"), check=True, stdout=subprocess.DEVNULL)
    assert rows("killed") == rows("whole")


@pytest.mark.parametrize(
    ("stops", "rounds", "finishes"),
    [
        ({"max_time": "00:00:00:01"}, 10**4, False),
        ({"max_time": "00:00:00:01"}, 1, True),  # its only round is its last one
        ({"max_time": "00:01:00:00", "early": EarlyStopping(stopping_threshold=0.0)}, 10**4, True),
    ],
)
def test_a_run_that_max_time_ended_is_not_finished(stops: dict[str, Any], rounds: int, finishes: bool, tmp_path: Path) -> None:
    """It has fewer rounds than its row's other runs. One that ended early by its own settings is finished."""
    cell = Cell("A", "", 0, tmp_path / "cell", [])
    run = fit(cell.folder, *filter(None, [stops.pop("early", None)]), **stops, rounds=rounds, eval_every=1).run_dir
    assert run is not None
    (run / "config.yaml").write_text(f"trainer: {{rounds: {rounds}, max_time: '{stops['max_time']}'}}")
    conclude(cell, 0)
    done = len(cell.history())
    assert cell.finished is finishes and (done < rounds or rounds == 1)
    told = f"max_time ended it after round {done}; the same command with a longer one, or none, continues it"
    assert cell.error == (None if finishes else told) and cell.begun


@pytest.mark.parametrize(("number", "why"), [(signal.SIGKILL, " (often because memory ran out)"), (signal.SIGSEGV, "")])
def test_a_killed_run_names_the_signal(number: int, why: str, tmp_path: Path) -> None:
    cell = Cell("A", "", 0, tmp_path / "cell", [])
    cell.folder.mkdir()
    (cell.folder / OUTPUT).write_text("flcog: error: an earlier attempt\nSeed set to 0\n")
    conclude(cell, -number)
    assert cell.error == f"killed by {signal.Signals(number).name}{why}"


def test_a_full_disk_asks_for_another_folder_of_the_comparison(tmp_path: Path) -> None:
    cell = Cell("A", "", 0, tmp_path / "cell", [])
    cell.folder.mkdir()
    (cell.folder / OUTPUT).write_text(f"flcog: error: cannot write last.ckpt: No space left on device; {RUN_REMEDY}\n")
    conclude(cell, 2)
    assert cell.error == "cannot write last.ckpt: No space left on device; free space or choose another --out"


def test_a_run_that_stops_early_for_now_is_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Successive halving stops a run after its first rounds. It is neither finished nor failed, and stops no more later."""
    commands: list[list[str]] = []
    monkeypatch.setattr("flcog.commands.compare.training.subprocess.Popen", lambda command, **_: commands.append(command))
    cell = Cell("A", "", 0, tmp_path / "cell", ["fit"], stop_after=2)
    cell.files.claim()
    for rounds in (2, 4):
        start(cell, 1, BytesIO())
        stops = [StopAfter(cell.stop_after)] if cell.stop_after else []
        run = fit(cell.folder, *stops, rounds=4, ckpt_path="last" if cell.begun else None).run_dir
        assert run is not None
        parts = [{"class_path": "flcog.callbacks.StopAfter", "init_args": {"round": 2}}] if stops else []
        (run / "config.yaml").write_text(yaml.safe_dump({"trainer": {"rounds": 4, "callbacks": parts}}))
        conclude(cell, 0)
        assert (len(cell.history()), cell.finished, cell.error) == (rounds, rounds == 4, None)
        cell.stop_after = None
        if stops:  # the user's own
            conclude(cell, 0)
            assert cell.error == "StopAfter ended it after round 2; the same command without StopAfter continues it"
            cell.error = None
    (first, second), word = (
        commands,
        '--trainer.callbacks+={"class_path": "flcog.callbacks.StopAfter", "init_args": {"round": 2}}',
    )
    assert first[-1] == word and word not in second and second[-2:] == ["--ckpt_path", "last"]
