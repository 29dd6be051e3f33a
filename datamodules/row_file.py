"""A file of rows with checksums, which one process fills and an interrupted run completes later."""

import math
import shutil
import time
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from flcog.core.files import clear_errors, make_folder, put_in_place, replacing
from flcog.datamodules.files import MADE_AGAIN, reading

IN_MEMORY_BYTES = 2 * 2**30
"""The largest set that is read into memory and moved to the device; larger sets stay on disk and are read by batch."""

CHUNK_BYTES = 64 * 2**20
"""The size of the rows that are requested at once."""

SECONDS = 2.0
"""The longest time between two marks of progress. An interrupted run repeats at most this work."""


@dataclass(frozen=True)
class RowFile:
    """One ``.npy`` file of rows.

    While the file is incomplete, its name ends with ``.partial``, and a second file marks the finished rows, so that an
    interrupted run can continue. The final name appears only when every row is on disk. A third file holds a checksum for each
    row.

    Args:
        path: the path of the finished file.
        shape: the shape of the array; its first axis counts the rows.
        dtype: the type of its values.
        remedy: the advice for a full disk.
    """

    path: Path
    shape: tuple[int, ...]
    dtype: np.dtype
    remedy: str

    def load(self) -> "CheckedRows":
        """Return the rows, which stay on disk and are compared with their checksums when they are read."""
        with reading(self.path, MADE_AGAIN):
            rows = np.load(self.path, mmap_mode="r")
            if rows.shape != self.shape or rows.dtype != self.dtype:
                raise ValueError(f"it holds {rows.dtype} of shape {rows.shape}, not {self.dtype} of shape {self.shape}")
        if not self._sums.exists():  # an earlier version wrote the file
            with replacing(self._sums, remedy=self.remedy) as file:
                file.write(np.fromiter(map(checksum, rows), np.uint32, len(rows)).tobytes())
        with reading(self._sums, MADE_AGAIN):
            sums = np.fromfile(self._sums, np.uint32)
            if len(sums) != len(rows):
                raise ValueError(f"it holds {len(sums)} checksums, not {len(rows)}")
        return CheckedRows(self.path, rows, sums)

    def fill(self, make: Callable[[np.ndarray], Iterable[np.ndarray]], what: str) -> None:
        """Compute the rows that are not on disk yet.

        Args:
            make: from numbers of rows to these rows, one after another.
            what: the text of the progress bar.
        """
        if self.path.exists():
            return
        folder = self.path.parent
        with clear_errors(folder, self.remedy):
            make_folder(folder)
        # The processes of a run start together: one fills, the others wait. The lock of a killed process is void.
        with FileLock(folder / ".lock"):
            if not self.path.exists():
                self._fill(make, what)

    def _fill(self, make: Callable[[np.ndarray], Iterable[np.ndarray]], what: str) -> None:
        partial, marks = self.path.with_suffix(".partial"), self.path.with_suffix(".marks")
        whole = marks.exists() and marks.stat().st_size == self.shape[0]
        if not (partial.exists() and whole and self._sums.exists() and self._sums.stat().st_size == 4 * self.shape[0]):
            self._create(partial, marks)
        with reading(partial, MADE_AGAIN):
            rows = np.lib.format.open_memmap(partial, mode="r+")
            if rows.shape != self.shape or rows.dtype != self.dtype:
                raise ValueError(f"it has {rows.dtype} of shape {rows.shape}, not {self.dtype} of {self.shape}")
        done, sums = np.memmap(marks, dtype=np.uint8, mode="r+"), np.memmap(self._sums, dtype=np.uint32, mode="r+")
        pending = np.flatnonzero(done == 0)
        at_once = max(1, CHUNK_BYTES // self._row_bytes)
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns, console=Console(stderr=True)) as progress:
            task = progress.add_task(what, total=len(done), completed=len(done) - len(pending))

            def mark(written: np.ndarray) -> None:
                # Rows are flushed before their marks: after a crash every marked row must be on disk.
                rows.flush()
                sums.flush()
                done[written] = 1
                done.flush()
                progress.advance(task, len(written))

            for start in range(0, len(pending), at_once):
                chosen = pending[start : start + at_once]
                _write(rows, sums, chosen, make(chosen), mark)
        put_in_place(partial, self.path, self.remedy)
        marks.unlink()

    @property
    def _sums(self) -> Path:
        """The file of the rows' checksums."""
        return self.path.with_suffix(".sums")

    @property
    def _row_bytes(self) -> int:
        return max(1, math.prod(self.shape[1:]) * self.dtype.itemsize)

    def _create(self, partial: Path, marks: Path) -> None:
        needed, free = self.shape[0] * self._row_bytes, shutil.disk_usage(partial.parent).free
        # A full disk would kill the process as it touches the mapped file, without a message.
        if needed > free:
            raise ValueError(
                f"a file of {self.shape[0]} samples takes {needed / 1e9:.1f} GB in {partial.parent}, where {free / 1e9:.1f} GB are free: "
                f"{self.remedy}"
            )
        with clear_errors(partial, self.remedy):
            np.lib.format.open_memmap(partial, mode="w+", dtype=self.dtype, shape=self.shape)
        for path, size in ((self._sums, 4 * self.shape[0]), (marks, self.shape[0])):
            with replacing(path, remedy=self.remedy) as file:
                file.write(bytes(size))


class CheckedRows:
    """The rows of a file, each compared with its checksum when it is read.

    Args:
        path: the path of the file.
        rows: the whole file, memory-mapped.
        sums: the checksum of each row.
        field: the name of the only field to return; None for whole rows.
    """

    def __init__(self, path: Path, rows: np.ndarray, sums: np.ndarray, field: str | None = None) -> None:
        self._path, self._rows, self._sums, self._field = path, rows, sums, field
        shown = rows if field is None else rows[field]
        self.shape, self.dtype, self.ndim, self.nbytes = shown.shape, shown.dtype, shown.ndim, shown.nbytes

    def field(self, name: str) -> "CheckedRows":
        """Return a view with only one field of each row."""
        return CheckedRows(self._path, self._rows, self._sums, name)

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, chosen: Any) -> np.ndarray:
        """Return some rows, selected by a number, a slice or an array of numbers."""
        numbers = np.atleast_1d(np.arange(len(self._rows))[chosen])
        rows = np.array(self._rows[numbers])
        for number, row in zip(numbers, rows, strict=True):
            if checksum(row) != self._sums[number]:
                raise ValueError(f"row {number} of {self._path} is damaged: its checksum does not match; {MADE_AGAIN}")
        rows = rows if self._field is None else rows[self._field]
        return np.asarray(rows[0] if np.ndim(chosen) == 0 and not isinstance(chosen, slice) else rows)


def checksum(row: np.ndarray | np.void) -> int:
    """Return the CRC-32 of a row's bytes."""
    return zlib.crc32(row.tobytes())


def _write(
    rows: np.ndarray, sums: np.ndarray, chosen: np.ndarray, made: Iterable[np.ndarray], mark: Callable[[np.ndarray], None]
) -> None:
    """Write values and their checksums into the chosen rows, and regularly mark the finished rows."""
    marked, last = 0, time.monotonic()
    for count, (row, value) in enumerate(zip(chosen, made, strict=True), start=1):
        rows[row] = value
        sums[row] = checksum(rows[row])
        if time.monotonic() - last >= SECONDS:
            mark(chosen[marked:count])
            marked, last = count, time.monotonic()
    mark(chosen[marked:])
