"""``flcog compare`` trains what is unfinished, several runs at a time, shows what is left, and leaves no run behind when it is stopped."""

import csv
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from harness import ROOT, fit
from two_processes import wait_for

from commands.comparisons import QUICKSTART, fake_run, table_file
from flcog.callbacks import EarlyStopping
from flcog.commands.cli import main
from flcog.commands.compare.launcher import conclude
from flcog.commands.compare.runs import OUTPUT, Run
from flcog.core import child_processes as processes

FEDPROX = str(ROOT / "configs/methods/fedprox.yaml")


class Process:
    """A stand-in for a run's process, which ends at once with two rounds, or with an error at first if it has 77 local steps."""

    started: list["Process"] = []
    sends = 0
    """A signal to the comparison, after which the process waits for the signal that it passes on."""

    def __init__(self, command: list[str], stdout: Any, **_: Any) -> None:
        self.command, self.heard = command, list[int]()
        self.folder = Path(command[command.index("--trainer.default_root_dir") + 1])
        self.returncode = 2 if "77" in command and "--ckpt_path" not in command else 0
        self.started.append(self)
        stdout.write(b"some progress\nflcog: error: the disk is full\n" if self.returncode else b"fine\n")
        if self.sends:
            self.returncode = 75
            os.kill(os.getpid(), self.sends)
        elif not self.returncode:
            fake_run(Run("", "", 0, self.folder), [0.5, 0.25])

    def poll(self) -> int | None:
        return None if self.sends and not self.heard else self.returncode

    def send_signal(self, number: int) -> None:
        self.heard.append(number)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Process]]:
    monkeypatch.setattr("flcog.commands.compare.launcher.subprocess.Popen", Process)
    yield Process.started
    Process.started, Process.sends = [], 0


@pytest.fixture
def compare(tmp_path: Path) -> Callable[..., None]:
    def run(*more: str, **content: Any) -> None:
        table = table_file(tmp_path, **{"configs": [QUICKSTART], "rows": {"A": None, "B": None}} | content)
        main(["compare", str(table), "--out", str(tmp_path / "out"), *more])

    return run


def test_only_what_is_unfinished_is_run(
    tmp_path: Path, compare: Callable[..., None], started: list[Process], capsys: pytest.CaptureFixture[str]
) -> None:
    content = {"rows": {"A": None, "B": {"arguments": {"trainer.local_steps": 77}}}, "columns": {"x": None}}
    with pytest.raises(SystemExit):
        compare("--jobs", "2", **content)
    said = capsys.readouterr()
    assert "1 of 2 runs failed, the first, B · x · seed 0: the disk is full (all of it: " in said.err and len(started) == 2
    # The failed run had already written a checkpoint.
    (tmp_path / "out/x/B/seed0/20260101-000000/checkpoints").mkdir(parents=True)
    (tmp_path / "out/x/B/seed0/20260101-000000/checkpoints/last.ckpt").touch()
    compare(**content)
    assert len(started) == 3 and started[2].command[-2:] == ["--ckpt_path", "last"] and "seed0" in str(started[2].folder)
    # A copy of the configs together with the runs is still the same comparison.
    shutil.copytree(tmp_path, tmp_path / "elsewhere")
    main(["compare", str(tmp_path / "elsewhere/table.yaml"), "--out", str(tmp_path / "elsewhere/out")])
    assert len(started) == 3 and "2 runs, 2 of them finished before" in capsys.readouterr().out
    shutil.rmtree(tmp_path / "out/x/A")
    compare(**content)
    assert len(started) == 4, "a deleted run is trained again"


def test_all_rows_have_a_seed_before_one_has_two(compare: Callable[..., None], started: list[Process]) -> None:
    compare(seeds=[0, 1])
    assert [process.folder.parts[-2:] for process in started] == [("A", "seed0"), ("B", "seed0"), ("A", "seed1"), ("B", "seed1")]


@pytest.mark.parametrize("words", [[], ["--dry-run"]])
def test_a_mistake_in_the_last_row_stops_the_first(
    words: list[str], compare: Callable[..., None], started: list[Process], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        compare(
            *words, rows={"A": None, "B": {"configs": [FEDPROX], "arguments": {"trainer.callbacks.muu": 1}}}, columns={"x": None}
        )
    said = capsys.readouterr().err
    assert "none has 'muu'. Did you mean 'mu'?" in said and "(in B · x; no run was started)" in said and not started


def test_a_metric_that_no_run_logs_is_named_at_the_end(
    compare: Callable[..., None], started: list[Process], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        compare(metrics="test/accurracy")
    printed = capsys.readouterr()
    assert "seed 0: no test/accurracy (" in printed.out
    assert "no run logged the table's metric test/accurracy, but comm/up_bytes, round, test/accuracy, time/" in printed.err


def test_a_dry_run_describes_the_runs_and_writes_nothing(
    compare: Callable[..., None], started: list[Process], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content: dict[str, Any] = {
        "rows": {"A": None, "B": {"arguments": {"trainer.local_steps": 3}}},
        "columns": {"x": None, "y": None},
    }
    compare("--only", "A", **content)
    before = sorted(tmp_path.rglob("*"))
    capsys.readouterr()
    compare("--dry-run", **content)
    assert sorted(tmp_path.rglob("*")) == before and len(started) == 2
    lines = capsys.readouterr().out.strip().splitlines()
    # Each round of the stand-in takes one second.
    assert lines[0] == "A · x · seed 0: finished" and lines[2] == "B · x · seed 0: to be trained, about 0:02"
    assert lines[3].startswith(f"  flcog fit -c {QUICKSTART} --trainer.local_steps 3 --seed_everything 0")
    assert lines[-1] == "4 runs: 2 are finished, 2 are to be trained, about 0:04 one after another"


def test_a_folder_with_other_settings_is_refused(
    compare: Callable[..., None], started: list[Process], capsys: pytest.CaptureFixture[str]
) -> None:
    one: dict[str, Any] = {"rows": {"A": None}}
    compare(**one)
    for words in (["--dry-run"], []):
        for more, content in (([], {"arguments": {"trainer.rounds": 7}}), (["--", "--trainer.rounds", "7"], {})):
            with pytest.raises(SystemExit, match=r"^2$"):
                compare(*words, *more, **one, **content)
            said = "out/A/seed0 holds this arm with other settings (quickstart instead of quickstart trainer.rounds=7): choose another"
            assert said in capsys.readouterr().err and len(started) == 1


# Signals and the ends of runs ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_a_signal_goes_to_the_runs_and_no_more_are_begun(
    name: str,
    compare: Callable[..., None],
    started: list[Process],
    capfd: pytest.CaptureFixture[str],
) -> None:
    number = getattr(signal, name)
    Process.sends = number
    before = signal.getsignal(number)
    with pytest.raises(SystemExit) as stop:
        compare()
    assert stop.value.code == (130 if name == "SIGINT" else 75) and signal.getsignal(number) is before
    assert [process.heard for process in started] == [[number]]
    output = capfd.readouterr()
    assert "0 of 2 runs finished. The same command continues the others" in output.out and "failed" not in output.out
    assert "current runs are saved and stop, and no further runs start" in output.err


@pytest.mark.parametrize(
    ("stops", "rounds", "finishes"),
    [
        ({"max_time": {"milliseconds": 50}}, 10**4, False),
        ({"max_time": {"microseconds": 1}}, 1, True),  # its only round is its last one
        ({"max_time": {"hours": 1}, "early": EarlyStopping(stopping_threshold=0.0)}, 10**4, True),
    ],
)
def test_a_run_that_max_time_ended_is_not_finished(stops: dict[str, Any], rounds: int, finishes: bool, tmp_path: Path) -> None:
    """It has fewer rounds than its row's other runs. One that ended early by its own settings is finished."""
    run = Run("A", "", 0, tmp_path / "run")
    directory = fit(run.folder, *filter(None, [stops.pop("early", None)]), **stops, rounds=rounds, eval_every=1).run_dir
    assert directory is not None
    (directory / "config.yaml").write_text(yaml.safe_dump({"trainer": {"rounds": rounds, **stops}}))
    (run.folder / OUTPUT).touch()
    told, done = conclude(run, 0), len(run.history)
    assert run.finished is finishes and (done < rounds or rounds == 1) and run.begun
    assert told == ("" if finishes else f"max_time ended it after round {done}; the same command without it continues it")


@pytest.mark.parametrize(
    ("code", "last", "error"),
    [
        (-signal.SIGKILL, "Seed set to 0", "killed by SIGKILL (often because memory ran out)"),
        (-signal.SIGSEGV, "Seed set to 0", "killed by SIGSEGV"),
        (2, "cannot write last.ckpt: full", "cannot write last.ckpt: full"),
        (2, "the update of client 3 in round 1 is NaN or infinite: lower it", ""),
    ],
)
def test_how_a_run_has_ended(code: int, last: str, error: str, tmp_path: Path) -> None:
    run = Run("A", "", 0, tmp_path / "run")
    (run.folder / "20260101-000000").mkdir(parents=True)
    (run.folder / "20260101-000000/run.yaml").touch()
    (run.folder / OUTPUT).write_text(f"flcog: error: an earlier attempt\nflcog: error: {last}\n")
    assert conclude(run, code) == error and run.diverged == ("NaN" in last)


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


@pytest.mark.slow
def test_a_process_ends_with_the_one_that_started_it(tmp_path: Path) -> None:
    """It is asked to save first, and killed if it does not end."""
    child = ORPHAN.format(module=str(Path(processes.__file__)), folder=str(tmp_path))
    environment = f"{{**os.environ, {processes.PARENT!r}: str(os.getpid())}}"
    program = f"import os, subprocess; subprocess.run([{sys.executable!r}, '-c', {child!r}], env={environment})"
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    wait_for((tmp_path / "ready").exists)
    assert not (tmp_path / "saved").exists()
    parent.kill()
    assert parent.stdout is not None and parent.stdout.read() == b""  # returns when the last process with this pipe has ended
    assert (tmp_path / "saved").exists()
    parent.wait()


def test_only_what_asked_for_it_is_watched() -> None:
    processes.end_with_parent()
    with processes.starting_processes():
        assert os.environ[processes.PARENT] == str(os.getpid())
    assert processes.PARENT not in os.environ and "end-with-parent" not in [thread.name for thread in threading.enumerate()]


SETTINGS = ["--trainer.rounds", "6", "--trainer.local_steps", "2", "--trainer.logger", "false", "--trainer.accelerator", "cpu"]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "devices"), [("SIGTERM", 1), ("SIGKILL", 2)])
def test_a_killed_comparison_goes_on_and_leaves_no_orphan(name: str, devices: int, tmp_path: Path) -> None:
    def command(out: str) -> list[str]:
        options = ["--only", "FedAvg", "Dirichlet(0.1)", "--", *SETTINGS, "--trainer.devices", str(devices)]
        return [sys.executable, "-m", "flcog", "compare", "digits", "--out", str(tmp_path / out), *options]

    def tables(out: str) -> list[Path]:
        return sorted((tmp_path / out).glob("*/*/*/*/metrics.csv"), key=lambda path: path.stat().st_mtime_ns)

    def rows(out: str) -> list[list[tuple[str, str]]]:
        with tables(out)[-1].open(newline="") as file:
            return [[(key, value) for key, value in row.items() if not key.startswith("time/")] for row in csv.DictReader(file)]

    def alive() -> list[str]:
        listed = subprocess.run(["ps", "-eo", "pid,args"], capture_output=True, text=True, check=True).stdout
        return [line for line in listed.splitlines() if str(tmp_path / "killed") in line]

    subprocess.run(command("whole"), check=True, stdout=subprocess.DEVNULL)
    process = subprocess.Popen(command("killed"), stdout=subprocess.DEVNULL)
    wait_for(lambda: any(len(path.read_text().splitlines()) > 2 for path in tables("killed")))
    process.send_signal(getattr(signal, name))
    process.wait()
    wait_for(lambda: not alive(), 40)
    subprocess.run(command("killed"), check=True, stdout=subprocess.DEVNULL)
    assert rows("killed") == rows("whole")
