"""The progress of a run: a live line on a terminal, a few plain lines elsewhere."""

import re
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from harness import TinyData, classifier, fit, make_trainer

from flcog.callbacks import FedCOG
from flcog.core.progress import Progress
from flcog.core.text import clock, seconds
from flcog.run.observers.progress import REFRESHES_PER_SECOND, ProgressBar
from run.killed_runs import killed


def progress_lines(printed: str) -> list[str]:
    return [line for line in printed.splitlines() if re.match(r"round +\d+/", line)]


@pytest.mark.slow
def test_without_a_terminal_progress_is_a_few_plain_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trainer = fit(tmp_path, rounds=50, local_steps=1, clients_per_round=1, eval_every=1)
    lines = progress_lines(capsys.readouterr().out)
    assert 15 <= len(lines) <= 22
    assert lines[0].startswith("round  1/50  ") and lines[-1].startswith("round 50/50  ")
    row = trainer.history[-1]
    scores = f"  test accuracy {row['test/accuracy']:.4f}, loss {row['test/loss']:.4f}  train loss {row['train/loss']:.4f}  "
    assert scores in lines[-1]
    assert lines[-1].endswith("  0:00 left") and max(map(len, lines)) <= 80
    assert progress_lines_of_a_run_with(tmp_path, capsys, ProgressBar(), rounds=1)[-1].endswith("/round  0:00 left")
    assert not progress_lines_of_a_run_with(tmp_path, capsys, ProgressBar(enabled=False))


def progress_lines_of_a_run_with(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], bar: ProgressBar, **options: Any
) -> list[str]:
    fit(tmp_path, bar, **options)
    return progress_lines(capsys.readouterr().out)


def test_progress_goes_on_where_a_resumed_run_does(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = killed(tmp_path, at=3, rounds=4)
    capsys.readouterr()
    lines = progress_lines_of_a_run_with(tmp_path, capsys, ProgressBar(), rounds=4, ckpt_path=str(run))
    assert [line.split("  ")[0] for line in lines] == ["round 3/4", "round 4/4"]


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal of 80 columns, as rich takes it from these variables."""
    for name, value in {"FORCE_COLOR": "1", "TERM": "xterm", "COLUMNS": "80", "NO_COLOR": "1"}.items():
        monkeypatch.setenv(name, value)


@pytest.mark.slow
def test_on_a_terminal_progress_is_one_live_line(tmp_path: Path, terminal: None, capsys: pytest.CaptureFixture[str]) -> None:
    began = time.perf_counter()
    trainer = fit(tmp_path, rounds=100, local_steps=1, clients_per_round=1, eval_every=1)
    took = time.perf_counter() - began
    screen = capsys.readouterr().out
    drawn = re.findall(r"round \d+/100 [^\r\n]*? left", screen)
    row = trainer.history[-1]
    scores = (
        f"test accuracy {row['test/accuracy']:.4f}, loss {row['test/loss']:.4f}  train loss {row['train/loss']:.4f}  0:00 left"
    )
    assert drawn[-1].startswith("round 100/100 ") and drawn[-1].endswith(scores)
    assert max(map(len, drawn)) <= 80
    assert len(drawn) <= took * REFRESHES_PER_SECOND + 3, "the line is drawn by the clock, not by the round"
    assert screen.rindex("\x1b[?25h") > screen.rindex("round 100/100"), "the cursor is shown again"
    assert not progress_lines(screen)


def test_the_terminal_is_put_right_when_a_run_dies(tmp_path: Path, terminal: None, capsys: pytest.CaptureFixture[str]) -> None:
    killed(tmp_path, at=3)
    assert capsys.readouterr().out.rpartition("round 2/3")[2].count("\x1b[?25h") == 1


FEDCOG = FedCOG(num_samples=4, steps=1)


@pytest.mark.parametrize("method", [None, FEDCOG], ids=["FedAvg", "FedCOG"])
@pytest.mark.parametrize(
    ("options", "counts"),
    [
        ({"executor": "loop"}, [1, 2, 3, 4, 5]),
        ({"executor": "loop", "chunk_size": 2}, [1, 2, 3, 4, 5]),
        ({"executor": "vmap", "chunk_size": 2}, [2, 4, 5]),
    ],
    ids=str,
)
def test_a_round_tells_its_phase_and_counts_its_clients(method: Any, options: dict[str, Any], counts: list[int]) -> None:
    trainer, told = make_trainer(None, *([method] if method else []), precision="32-true", **options), list[tuple[str, float]]()
    trainer.prepare(classifier(), TinyData())
    progress = trainer.run.progress
    progress.listener = lambda: told.append((progress.phase, progress.done))
    trainer.train_round()
    phases = list(dict.fromkeys(phase for phase, _ in told))
    assert sorted({round(done) for _, done in told}) == [0, *counts] and progress.clients == 5
    assert phases == ["planning", "training", *(["generating"] if method else []), "aggregating"]


def test_a_long_round_has_an_estimate_from_its_first_client_on() -> None:
    progress, settings = Progress(), SimpleNamespace(rounds=3)
    log = SimpleNamespace(in_progress_bar=set[str]())
    run: Any = SimpleNamespace(
        progress=progress, settings=settings, round=0, processes=SimpleNamespace(is_first=False), model=SimpleNamespace(log=log)
    )
    bar = ProgressBar()
    bar.on_fit_start(run)
    bar.on_round_start(run, 1, [])
    progress.begin("training", 4)
    bar._began -= 30  # the round takes half a minute for its first client
    assert bar._look(run, 100) == (0, 0, "training 0/4 clients")
    progress.count(1)
    assert bar._look(run, 100) == (0, 0.25, "training 1/4 clients  5:30 left")  # three rounds of two minutes each
    progress.count(3)
    progress.enter("evaluating")
    assert bar._look(run, 100) == (0, 1, "evaluating  1:00 left")


def test_times_are_written_for_people() -> None:
    assert [seconds(value) for value in (0.0042, 0.0213, 0.213, 12.34, 123.4)] == ["4.2 ms", "21 ms", "0.21 s", "12.3 s", "123 s"]
    assert [clock(value) for value in (8, 75, 3675, 100_000)] == ["0:08", "1:15", "1:01:15", "1 d 3:46:40"]
