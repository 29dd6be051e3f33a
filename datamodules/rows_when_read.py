"""A file of rows that are made when they are first read, so that time and disk depend on the rows that a run needs."""

import math
import os
import zlib
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock

from flcog.core.files import clear_errors, make_folder


class RowsWhenRead:
    """Rows of bytes on disk. A row that is missing, or whose checksum does not match, is made when it is read.

    The file has its full length from the start, but takes disk space only for the rows in it. Processes and later runs share it:
    equal rows are written by whoever reads them first.

    Args:
        path: the path of the file; a second file beside it has the checksums.
        shape: the shape of the array; its first axis counts the rows.
        make: makes the row of a number.
        remedy: the advice for a full disk.
    """

    dtype = np.dtype(np.uint8)

    def __init__(self, path: Path, shape: tuple[int, ...], make: Callable[[int], np.ndarray], remedy: str) -> None:
        self._path, self.shape, self._make, self._remedy = path, shape, make, remedy
        self.ndim, self._row_bytes = len(shape), math.prod(shape[1:])
        self.nbytes = shape[0] * self._row_bytes

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, chosen: Any) -> np.ndarray:
        """Return some rows, selected by a number, a slice or an array of numbers."""
        numbers = np.atleast_1d(np.arange(len(self))[chosen])
        rows, sums = self._files
        read = np.array(rows[numbers])
        missing = [place for place, number in enumerate(numbers) if sums[number] == 0 or zlib.crc32(read[place]) != sums[number]]
        if missing:
            for place, made in zip(missing, self._made(numbers[missing].tolist()), strict=True):
                read[place] = made
            with clear_errors(self._path, self._remedy):
                self._write(numbers[missing], read[missing])
        return np.asarray(read[0] if np.ndim(chosen) == 0 and not isinstance(chosen, slice) else read)

    def _made(self, numbers: list[int]) -> Iterable[np.ndarray]:
        with ThreadPoolExecutor(min(len(numbers), os.cpu_count() or 1)) as pool:
            return list(pool.map(self._make, numbers))

    def _write(self, numbers: np.ndarray, rows: np.ndarray) -> None:
        # Written, not mapped: a full disk then raises an error instead of ending the process.
        with self._path.open("r+b", buffering=0) as file, self._sums.open("r+b", buffering=0) as sums:
            for number, row in zip(numbers.tolist(), rows, strict=True):
                os.pwrite(file.fileno(), row.tobytes(), number * self._row_bytes)
                os.pwrite(sums.fileno(), np.uint32(zlib.crc32(row)).tobytes(), 4 * number)

    @property
    def _sums(self) -> Path:
        return self._path.with_suffix(".rows-sums")

    @cached_property
    def _files(self) -> tuple[np.ndarray, np.ndarray]:
        """The rows and their checksums, which are 0 for missing rows. Both are mapped, so that other processes' rows appear."""
        with clear_errors(self._path.parent, self._remedy):
            make_folder(self._path.parent)
            with FileLock(self._path.parent / ".lock"):
                for path, size in ((self._path, self.nbytes), (self._sums, 4 * len(self))):
                    with path.open("ab") as file:
                        file.truncate(size)
        rows = np.memmap(self._path, np.uint8, "r", shape=self.shape)
        return rows, np.memmap(self._sums, np.uint32, "r", shape=(len(self),))
