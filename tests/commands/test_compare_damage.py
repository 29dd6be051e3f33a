"""A finished run whose metrics.csv was damaged afterwards counts as unfinished, is reported, and is trained again."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from commands.test_compare import fake_run, plan_file
from flcog.commands.cli import main
from flcog.commands.compare.folder import finished_runs
from flcog.commands.compare.plan import Cell, cells
from flcog.commands.compare.table_file import read_table

SCORES = [0.25, 0.5, 0.75]


def finished_table(folder: Path) -> tuple[Path, list[Cell]]:
    path = plan_file(folder)
    runs = cells(read_table(path), folder / "out", [])
    for cell in runs:
        fake_run(cell, SCORES)
        cell.files.mark_finished("its identity")
        (cell.folder / "output.txt").touch()
        (cell.folder / "arguments.yaml").write_text(str(cell.arguments))
        assert cell.finished and cell.damage is None
    return path, runs


def damages(table: Path) -> dict[str, bytes]:
    content = table.read_bytes()
    return {
        "it is not as it was when the run finished": content.replace(b"0.75", b"0.95"),
        r"row 2 is damaged \(test/accuracy is '0.x'\)": content.replace(b"0.5,", b"0.x,"),
        "round 1 is missing": b"",
        "round 2 is missing": b"".join(line for line in content.splitlines(keepends=True) if not line.startswith(b"2,")),
    }


@pytest.mark.parametrize("place", range(4))
def test_damage_is_told_and_the_run_counts_for_nothing(
    place: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    path, (first, second) = finished_table(tmp_path)
    assert first.run is not None
    table = first.run.table
    fault, content = list(damages(table).items())[place]
    table.write_bytes(content)
    assert not first.finished and second.finished
    main(["compare", str(path), "--out", str(tmp_path / "out"), "--show", "--save-results"])
    printed = capsys.readouterr()
    message = fault.replace("\\", "")
    assert printed.err.count(f"{table}: {message}. The run counts as unfinished\n") == 1
    assert "1 finished runs saved" in printed.out
    saved = (tmp_path / "results/table.csv").read_text()
    assert "B" in saved and ",A," not in saved and not saved.partition("\n")[2].startswith("A,")


def test_the_report_of_an_altered_run_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, (first, _) = finished_table(tmp_path)
    assert first.run is not None
    table = first.run.table
    table.write_bytes(table.read_bytes().replace(b"0.75", b"0.95"))
    main(["report", str(first.run.directory)])
    assert f"{table}: it is not as it was when the run finished. The page shows the altered rows\n" in capsys.readouterr().err


def test_a_run_that_was_deleted_is_trained_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path, (first, second) = finished_table(tmp_path)
    assert first.run is not None
    shutil.rmtree(first.run.directory)
    assert not first.finished and second.finished and finished_runs(tmp_path) == {"its identity": second.folder}
    started = list[list[str]]()

    class Process:
        def __init__(self, command: list[str], **options: Any) -> None:
            started.append(command)
            assert not (first.folder / "finished").exists()
            if len(started) == 2:
                fake_run(first, SCORES)

        def wait(self) -> int:
            return 0

    monkeypatch.setattr("flcog.commands.compare.training.subprocess.Popen", Process)
    with pytest.raises(SystemExit):
        main(["compare", str(path), "--out", str(tmp_path / "out")])
    assert f"A · seed 0: its command ended without a run in {first.folder}" in capsys.readouterr().err
    main(["compare", str(path), "--out", str(tmp_path / "out")])
    assert len(started) == 2 and first.finished and "2 runs, 1 of them finished before" in capsys.readouterr().out


@pytest.mark.slow
def test_a_damaged_run_is_put_aside_and_trained_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path, (first, _) = finished_table(tmp_path)
    assert first.run is not None
    run, started = first.run.directory, list[list[str]]()
    (run / "checkpoints").mkdir()
    (run / "checkpoints/last.ckpt").touch()
    (run / "metrics.csv").write_bytes(b"round\n1\n")

    class Process:
        def __init__(self, command: list[str], **options: Any) -> None:
            started.append(command)
            fake_run(first, SCORES)

        def wait(self) -> int:
            return 0

    monkeypatch.setattr("flcog.commands.compare.training.subprocess.Popen", Process)
    main(["compare", str(path), "--out", str(tmp_path / "out")])
    assert "is trained again; the old run is kept in the folder damaged" in capsys.readouterr().err
    (command,) = started
    assert "--ckpt_path" not in command and first.finished
    assert [kept.name.partition("-")[2] for kept in (first.folder / "damaged").iterdir()] == ["20260101-000000"]
    main(["compare", str(path), "--out", str(tmp_path / "out")])
    assert len(started) == 1


def test_a_report_says_where_a_run_is_damaged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, (first, _) = finished_table(tmp_path)
    assert first.run is not None
    with first.run.table.open("a") as file:
        file.write("4,0.x,1,1\n")
    main(["report", str(first.run.directory)])
    assert (
        "metrics.csv: row 4 is damaged (test/accuracy is '0.x'); the page shows the 3 rows before it" in capsys.readouterr().err
    )


def test_the_notes_of_a_run_are_read_with_care(tmp_path: Path) -> None:
    """A run.yaml from elsewhere may contain anything."""
    _, (first, _) = finished_table(tmp_path)
    assert first.run is not None
    for text in ("trainer: !!timedelta 3", "a: &a [*a]", "time: 2026-99-99"):
        (first.run.directory / "run.yaml").write_text(text)
        assert first.run.description == {}
