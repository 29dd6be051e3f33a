"""A run's directory: its table with new columns and after resumes, and how its checkpoints are found."""

import csv
import math
import os
import sys
from pathlib import Path

import pytest
from harness import TinyData, classifier, fit

from flcog.core.files import short
from flcog.run.directory import find_checkpoint, new_run_directory, next_command, run_of
from flcog.run.metrics_table import MetricsTable


def read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_a_column_that_appears_later_leaves_earlier_rows_empty(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    table = MetricsTable(path)
    table.append({"round": 1, "train/loss": 0.5})
    table.append({"round": 2, "train/loss": 0.25, "test/accuracy": 0.75})
    table.append({"round": 3, "train/loss": 0.125})
    assert read(path) == [
        {"round": "1", "train/loss": "0.5", "test/accuracy": ""},
        {"round": "2", "train/loss": "0.25", "test/accuracy": "0.75"},
        {"round": "3", "train/loss": "0.125", "test/accuracy": ""},
    ]
    assert os.listdir(tmp_path) == ["metrics.csv"]
    assert table.rows[0] == {"round": 1, "train/loss": 0.5}, "a row holds what was measured, and no more"


def test_numbers_come_back_bit_for_bit(tmp_path: Path) -> None:
    row = {"round": 1, "a": 0.1 + 0.2, "b": 1e-300, "c": 1e22, "d": -0.0, "e": math.inf, "f": 5.0, "g": 2**53 + 1}
    MetricsTable(tmp_path / "metrics.csv").append(row)
    table = MetricsTable(tmp_path / "metrics.csv")
    table.load(rounds=1)
    assert table.rows == [row]
    assert [type(value) for value in table.rows[0].values()] == [type(value) for value in row.values()]
    MetricsTable(tmp_path / "nan.csv").append({"round": 1, "x": math.nan})
    table = MetricsTable(tmp_path / "nan.csv")
    table.load(rounds=1)
    assert math.isnan(table.rows[0]["x"])


def test_a_resume_drops_the_rounds_that_no_checkpoint_has(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    table = MetricsTable(path)
    for round in range(1, 6):
        table.append({"round": round, "x": round / 10} | ({"late": 1.0} if round == 5 else {}))
    with path.open("a") as file:
        file.write("1")  # the beginning of a line that a power cut has interrupted
    table = MetricsTable(path)
    table.load(rounds=3)
    assert [row["round"] for row in table.rows] == [1, 2, 3]
    assert list(read(path)[0]) == ["round", "x"] and len(read(path)) == 3
    table.append({"round": 4, "x": 0.4})
    assert [row["round"] for row in read(path)] == ["1", "2", "3", "4"]


def test_runs_of_one_second_get_directories_of_their_own(tmp_path: Path) -> None:
    assert len({new_run_directory(tmp_path / "new" / "root") for _ in range(3)}) == 3
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=r"cannot write .*file: .*choose another trainer\.default_root_dir"):
        new_run_directory(tmp_path / "file")
    with pytest.raises(ValueError, match="cannot write /proc"):
        new_run_directory("/proc/flcog")


def same(checkpoint: Path) -> str:
    """No difference between the methods of a checkpoint's run and this run's."""
    return ""


def test_last_is_the_newest_runs(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"ckpt_path=last: no run under .* has a checkpoint; give a file, or start without"):
        find_checkpoint("last", tmp_path / "nothing", same)
    for age, name in ((3, "20260101-000000"), (1, "20250101-000000"), (2, "20270101-000000")):
        folder = tmp_path / name / "checkpoints"
        folder.mkdir(parents=True)
        (folder / "last.ckpt").write_text("")
        os.utime(folder / "last.ckpt", (1e9 - age, 1e9 - age))
    (tmp_path / "20280101-000000").mkdir()  # a run that wrote no checkpoint
    newest = tmp_path / "20250101-000000"
    assert find_checkpoint("last", tmp_path, same) == newest / "checkpoints/last.ckpt"
    assert find_checkpoint("best", tmp_path, same) == newest / "checkpoints/best.ckpt"
    other = tmp_path / "20270101-000000"
    assert find_checkpoint(other, tmp_path, same) == find_checkpoint(str(other), "x", same) == other / "checkpoints/last.ckpt"
    assert find_checkpoint(other / "checkpoints/round-000001.ckpt", tmp_path, same) == other / "checkpoints/round-000001.ckpt"


def test_checkpoints_that_are_not_there_or_belong_to_no_run_are_refused(tmp_path: Path) -> None:
    trainer = fit(tmp_path / "runs")
    assert trainer.run_dir is not None
    for path in (tmp_path / "nowhere.ckpt", trainer.run_dir / "checkpoints/best.ckpt", tmp_path):
        with pytest.raises(ValueError, match=f"no checkpoint at {path}"):
            fit(tmp_path / "runs", ckpt_path=str(path))
    moved = tmp_path / "moved.ckpt"
    moved.write_bytes((trainer.run_dir / "checkpoints/last.ckpt").read_bytes())
    with pytest.raises(ValueError, match=r"moved\.ckpt lies outside a run's directory"):
        fit(tmp_path / "runs", ckpt_path=str(moved))
    assert trainer.test(classifier(), TinyData(), str(moved)).keys() >= {"test/accuracy"}
    assert run_of(trainer.run_dir / "checkpoints/last.ckpt") == trainer.run_dir.resolve()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["moved.ckpt", "runs"]


def test_commands_can_be_pasted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command_line: None) -> None:
    monkeypatch.delenv("UV_RUN_RECURSION_DEPTH", raising=False)
    monkeypatch.chdir(tmp_path)
    run = tmp_path / "my runs" / "1"
    config = {"model": {"class_path": "Classifier"}, "data": {"class_path": "CIFAR10"}}
    assert next_command("fit", run, run, config) == "flcog fit -c 'my runs/1/config.yaml' --ckpt_path 'my runs/1'"
    sys.argv[:] = ["main.py", "fit"]
    script = next_command("fit", run, run, config | {"model": {"width": 3}})
    assert script == "python main.py fit -c 'my runs/1/config.yaml' --ckpt_path 'my runs/1'"
    assert next_command("test", run, run / "a.ckpt", None) == "trainer.test(model, datamodule, ckpt_path='my runs/1/a.ckpt')"
    assert short(Path("/elsewhere")) == Path("/elsewhere") and short(Path("below")) == Path("below")
