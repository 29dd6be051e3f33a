"""CSV files with rows of numbers of clients, for availability and speeds."""

import warnings
from pathlib import Path

import numpy as np


def version_of(path: str, header: str) -> int:
    """The time of a file's last change, under which its content is cached."""
    if not Path(path).is_file():
        raise ValueError(f"there is no file {path}: give the path of a CSV file with the header {header}")
    return Path(path).stat().st_mtime_ns


def client_rows(path: str, header: str) -> np.ndarray:
    """The rows of a file by client and second column, float64. The header names the columns, of which the first is the client.

    >>> import tempfile
    >>> with tempfile.NamedTemporaryFile("w+") as file:
    ...     _ = file.write("client,from,until\\n1,0,9\\n0,5,9\\n"), file.flush()
    ...     client_rows(file.name, "client,from,until").tolist()
    [[0.0, 5.0, 9.0], [1.0, 0.0, 9.0]]
    """
    with open(path, encoding="utf-8") as file:
        first = file.readline().strip()
        if first.replace(" ", "") != header:
            raise ValueError(f"{path} must begin with the header {header}; got {first[:60]!r}")
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # about a file without rows, which is refused below
                rows = np.loadtxt(file, delimiter=",", ndmin=2)
        except ValueError as error:
            raise ValueError(f"{path} must have rows of numbers below its header; {error}") from None
    if rows.shape[1:] != (header.count(",") + 1,) or not len(rows):
        raise ValueError(f"{path} must have rows of {header} below its header; got {len(rows)} rows of {rows.shape[-1]} numbers")
    refuse(path, rows, np.isnan(rows).any(1) | (rows[:, 0] < 0) | (rows[:, 0] % 1 != 0), "must name a client by its number")
    return rows[np.lexsort((rows[:, 1], rows[:, 0]))]


def refuse(path: str, rows: np.ndarray, wrong: np.ndarray, fault: str) -> None:
    """An error about the first wrong row."""
    if wrong.any():
        row = ",".join(f"{value:g}" for value in rows[int(np.argmax(wrong))])
        raise ValueError(f"{path}: the row {row} {fault}")
