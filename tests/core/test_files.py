"""Power cuts and full disks: a file has its old or its new content, no other files are left, and the user reads a single line."""

import errno
import os
import resource
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from harness import fit, without_times
from matplotlib.figure import Figure
from PIL import Image

from flcog.core import files
from flcog.core.files import write_yaml
from flcog.data import Partition
from flcog.method import Callback
from flcog.run import checkpoint
from flcog.run.metrics_table import MetricsTable

NO_SPACE = os.strerror(errno.ENOSPC)


def images(path: Path) -> None:
    with files.replacing_folder(path) as folder:
        (folder / "class").mkdir()
        Image.new("L", (4, 4)).save(folder / "class" / "0.png")


WRITERS: dict[str, Callable[[Path], None]] = {
    "last.ckpt": lambda path: checkpoint.write(path, {"format": 1, "x": torch.zeros(3)}),
    "run.yaml": lambda path: write_yaml(path, {"seed": 1}),
    "metrics.csv": lambda path: MetricsTable(path).append({"round": 1, "x": 0.25}),
    "partition.npz": lambda path: Partition.from_clients([np.arange(3), np.arange(3, 5)]).save(path),
    "figure.png": lambda path: files.write_figure(path, Figure()),
    "images": images,
}


@contextmanager
def full_disk(after: int = 0) -> Iterator[None]:
    """Flushing a file fails, as on a full file system that allocates blocks late. Only the first ``after`` flushes succeed."""
    flush, left = os.fsync, after

    def fails(descriptor: int) -> None:
        nonlocal left
        if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
            left -= 1
            if left < 0:
                raise OSError(errno.ENOSPC, NO_SPACE)
        flush(descriptor)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", fails)
        yield


@contextmanager
def small_files(size: int) -> Iterator[None]:
    """No file may grow beyond ``size`` bytes, so that the write itself fails."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("name", WRITERS)
def test_on_a_full_disk_the_old_file_stays_and_nothing_lies_beside(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    with full_disk(), pytest.raises(ValueError, match=rf"^cannot write {path}: {NO_SPACE}; free space or choose another \S+$"):
        WRITERS[name](path)
    assert os.listdir(tmp_path) == []
    if name == "images":
        return
    path.write_bytes(b"the old one")
    with full_disk(), pytest.raises(ValueError, match=NO_SPACE):
        WRITERS[name](path)
    assert path.read_bytes() == b"the old one"
    assert os.listdir(tmp_path) == [name]
    WRITERS[name](path)
    assert path.read_bytes() != b"the old one"


@pytest.mark.parametrize("name", WRITERS)
def test_content_then_name_then_folder_reach_the_disk(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []
    flush, rename = os.fsync, os.replace

    def fsync(descriptor: int) -> None:
        events.append(f"flush {'folder' if stat.S_ISDIR(os.fstat(descriptor).st_mode) else 'file'}")
        flush(descriptor)

    def replace(old: Path, new: Path) -> None:
        events.append("rename")
        rename(old, new)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", replace)
    WRITERS[name](tmp_path / name)
    before, after = events[: events.index("rename")], events[events.index("rename") + 1 :]
    assert "flush file" in before and after == ["flush folder"]


def test_a_write_that_fails_midway_is_one_line_too(tmp_path: Path) -> None:
    # torch.save raises its own error instead of the disk's.
    with small_files(4096), pytest.raises(ValueError, match=r"^cannot write .*last\.ckpt: File too large; free space or choose"):
        checkpoint.write(tmp_path / "last.ckpt", {"x": torch.randn(10_000)})
    assert os.listdir(tmp_path) == []
    with pytest.raises(RuntimeError, match="not about files"), files.clear_errors(tmp_path):
        raise RuntimeError("not about files")


def test_a_row_that_does_not_fit_is_one_line_too(tmp_path: Path) -> None:
    table = MetricsTable(tmp_path / "metrics.csv")
    table.append({"round": 1, "x": 0.25})
    with full_disk(), pytest.raises(ValueError, match=rf"cannot write .*metrics\.csv: {NO_SPACE}"):
        table.append({"round": 2, "x": 0.5})


def test_a_device_is_written_to_and_a_link_is_followed(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=rf"^cannot write /dev/full: {NO_SPACE}; "), files.replacing("/dev/full") as file:
        file.write(b"something")
    assert Path("/dev/full").is_char_device()
    (tmp_path / "target").write_text("old")
    (tmp_path / "link").symlink_to(tmp_path / "target")
    with files.replacing(tmp_path / "link", "w") as text:
        text.write("new")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "target").read_text() == "new"


class FullAfterRound(Callback):
    """After the end of a round, the disk has space for ``files`` more files."""

    def __init__(self, round: int, files: int) -> None:
        self.disk, self.round = full_disk(files), round

    def on_round_start(self, run: object, round: int, clients: list[int]) -> None:
        if round == self.round + 1:
            self.disk.__enter__()

    def on_exception(self, run: object, exception: BaseException) -> None:
        self.disk.__exit__(None, None, None)


@pytest.mark.parametrize("more", [0, 1])
def test_a_run_whose_disk_fills_up_goes_on_once_there_is_space(more: int, tmp_path: Path) -> None:
    whole = fit(tmp_path / "whole", eval_every=1)
    with pytest.raises(
        ValueError, match=rf"^cannot write .*: {NO_SPACE}; free space or choose another trainer\.default_root_dir$"
    ):
        fit(tmp_path / "runs", FullAfterRound(1, more), eval_every=1)
    run = next((tmp_path / "runs").iterdir())
    assert [path.name for path in run.rglob(".*") if path.is_file()] == [".lock"]  # the empty lock file of the run's writer
    assert checkpoint.read(run / "checkpoints/last.ckpt")["round"] == 1
    resumed = fit(tmp_path / "runs", ckpt_path=str(run), eval_every=1)
    assert without_times(resumed.history) == without_times(whole.history)
    assert all(torch.equal(resumed.params[name], value) for name, value in whole.params.items())
