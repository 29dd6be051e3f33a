"""A file of rows, each of which is made once: before training, or when it is first read."""

import copy
import math
import os
import zlib
from collections.abc import Callable, Iterable
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock
from rich.console import Console
from rich.progress import track

from flcog.core.files import clear_errors, make_folder

IN_MEMORY_BYTES = 2 * 2**30
"""The largest set that is read into memory and moved to the device; larger sets stay on disk and are read by batch."""


class RowFile:
    """Rows on disk, each with a checksum in a second file. A row that is missing or damaged is made when it is read.

    The file has its full length from the start, but takes disk space only for the rows in it. Each row is written as soon as it is
    made, so that an interrupted run goes on where it stopped. Processes and later runs share the file. ``make`` makes the rows of some
    numbers, one after another.
    """

    def __init__(
        self, path: Path, shape: tuple[int, ...], dtype: np.dtype, make: Callable[[np.ndarray], Iterable[np.ndarray]]
    ) -> None:
        self.path, self.shape, self.dtype, self._make = path, shape, dtype, make
        self.ndim, self._row_bytes = len(shape), math.prod(shape[1:]) * dtype.itemsize
        self.nbytes = shape[0] * self._row_bytes
        self._field: str | None = None

    def field(self, name: str) -> "RowFile":
        """The same rows, of which only one field is returned."""
        view = copy.copy(self)
        view._field, view.dtype = name, self.dtype[name].base
        view.shape = (*self.shape, *self.dtype[name].shape)
        view.ndim = len(view.shape)
        return view

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, chosen: Any) -> np.ndarray:
        """Return some rows, selected by a number, a slice or an array of numbers."""
        numbers = np.atleast_1d(np.arange(len(self))[chosen])
        rows, sums = self._files
        read = rows[numbers]
        wrong = np.flatnonzero([checksum(row) != known for row, known in zip(read, sums[numbers], strict=True)])
        for place, row in zip(wrong, self._made(numbers[wrong]), strict=True):
            read[place] = row
        read = read if self._field is None else read[self._field]
        return np.asarray(read[0] if np.ndim(chosen) == 0 and not isinstance(chosen, slice) else read)

    def fill(self, what: str) -> None:
        """Make the missing rows, below a progress bar with this text. Of several processes one fills, and the others wait."""
        sums = self._files[1]
        with FileLock(self.path.with_suffix(".lock")):
            missing = np.flatnonzero(sums == 0)
            if len(missing):
                for _ in track(self._made(missing), what, len(missing), console=Console(stderr=True)):
                    pass

    def _made(self, numbers: np.ndarray) -> Iterable[np.ndarray]:
        """Make rows, and write each before the next."""
        if not len(numbers):
            return
        # Written, not mapped: a full disk then raises an error instead of ending the process.
        with self.path.open("r+b", buffering=0) as file, self._sums.open("r+b", buffering=0) as sums:
            for number, row in zip(numbers.tolist(), self._make(numbers), strict=True):
                with clear_errors(self.path, "point cache_dir at a larger disk, or ask for fewer or smaller samples"):
                    os.pwrite(file.fileno(), row.tobytes(), number * self._row_bytes)
                    os.pwrite(sums.fileno(), np.uint32(checksum(row)).tobytes(), 4 * number)
                yield row

    @property
    def _sums(self) -> Path:
        return self.path.with_suffix(".sums")

    @cached_property
    def _files(self) -> tuple[np.ndarray, np.ndarray]:
        """The rows and their checksums, which are 0 for missing rows. Both are mapped, so that other processes' rows appear."""
        with clear_errors(self.path.parent):
            make_folder(self.path.parent)
        with FileLock(self.path.with_suffix(".lock")):
            for path, size in ((self.path, self.nbytes), (self._sums, 4 * len(self))):
                with path.open("ab") as file:
                    if file.tell() not in (0, size):
                        raise ValueError(
                            f"{path} has {file.tell():,} bytes, and this set takes {size:,}: it belongs to another set or version of it; "
                            "delete it, or name another cache_dir"
                        )
                    file.truncate(size)
        rows = np.memmap(self.path, self.dtype, "r", shape=self.shape)
        return np.asarray(rows), np.asarray(np.memmap(self._sums, np.uint32, "r", shape=(len(self),)))


def checksum(row: np.ndarray | np.void) -> int:
    """The CRC-32 of a row's bytes. Files of zeros, which a crash may leave, do not have it."""
    return zlib.crc32(row.data if isinstance(row, np.ndarray) and row.flags.c_contiguous else row.tobytes())
