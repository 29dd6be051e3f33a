"""``flcog compare`` reports the remaining runs, rounds and time, and on a terminal shows the table as it fills."""

import re
from pathlib import Path

import pytest

from flcog.commands.compare import progress as progress_module
from flcog.commands.compare.plan import Cell
from flcog.commands.compare.progress import Progress

ROUNDS = {"A · seed 0": 10, "B · seed 0": 10, "C · seed 0": 10}


def cell(folder: Path, row: str, rounds: int, finished: bool = False) -> Cell:
    """A cell whose run has done this number of rounds."""
    made = Cell(row, "", 0, folder / row, [])
    run = made.folder / "20260101-000000"
    run.mkdir(parents=True)
    write(made, rounds)
    if finished:
        (made.folder / "finished").touch()
    return made


def write(made: Cell, rounds: int) -> None:
    lines = ["round", *map(str, range(1, rounds + 1))]
    (made.folder / "20260101-000000/metrics.csv").write_text("\n".join(lines) + "\n")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [0.0]
    monkeypatch.setattr(progress_module.time, "monotonic", lambda: now[0])
    return now


def test_what_remains_is_told_with_each_run(tmp_path: Path, capsys: pytest.CaptureFixture[str], clock: list[float]) -> None:
    before, interrupted, begun, plain = (
        cell(tmp_path, "A", 10, finished=True),
        cell(tmp_path, "B", 4),
        cell(tmp_path, "C", 0),
        cell(tmp_path, "D", 0),
    )
    (interrupted.folder / "20260101-000000/checkpoints").mkdir()
    (interrupted.folder / "20260101-000000/checkpoints/last.ckpt").touch()
    runs, in_hand = [before, interrupted, begun, plain], [begun]
    rounds = ROUNDS | {"D · seed 0": 10}
    with Progress(runs, runs[1:], rounds, lambda: in_hand, lambda: ([], [])) as progress:
        # Remaining rounds: 6 of B, 10 of C and 10 of D.
        clock[0] = 60.0
        write(interrupted, 10)
        write(begun, 2)
        progress.tell(interrupted, "best 50.00", 60.0)
        assert capsys.readouterr().out == "[2/4] B · seed 0: best 50.00 (60.0 s); 8 of 26 rounds in 1:00, 2:15 left\n"
        in_hand[:] = [plain]
        # The 8 rounds that C lacks will not be trained.
        progress.tell(begun, "failed: no space", 1.0)
        assert "[3/4] C · seed 0: failed: no space (1.00 s); 8 of 18 rounds in 1:00, 1:15 left\n" in capsys.readouterr().out
        progress.tell(plain, "best 1.00", 1.0)
        assert capsys.readouterr().out == "[4/4] D · seed 0: best 1.00 (1.00 s)\n"


def test_on_a_terminal_the_table_fills(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"FORCE_COLOR": "1", "TERM": "xterm", "COLUMNS": "100"}.items():
        monkeypatch.setenv(name, value)
    runs = [cell(tmp_path, "A", 0), cell(tmp_path, "B", 0)]
    table = [["A", ""], ["B [ours] [/b]", ""]]  # no markup of rich's
    with Progress(runs, runs, ROUNDS, list, lambda: (["", "best"], table)) as progress:
        table[0][1] = "51.25"
        write(runs[0], 10)
        progress.tell(runs[0], "best 51.25", 2.0)
        progress._live.refresh()
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", capsys.readouterr().out)
    assert "[1/2] A · seed 0: best 51.25 (2.00 s)" in text
    assert re.search(r"best *\r?\nA +51\.25 *\r?\nB \[ours\] \[/b\]", text) and "1 of 2 runs, 10 of 20 rounds in 0:0" in text
