"""CSV files with rows of numbers of clients, for availability and speeds."""

import os
from functools import lru_cache

import numpy as np


def client_rows(path: str, header: str) -> np.ndarray:
    """The rows of a file by client and second column, float64. The header names the columns, of which the first is the client.

    A file is read again if it has changed.

    >>> import tempfile
    >>> with tempfile.NamedTemporaryFile("w+") as file:
    ...     _ = file.write("client,from,until\\n1,0,9\\n0,5,9\\n"), file.flush()
    ...     client_rows(file.name, "client,from,until").tolist()
    [[0.0, 5.0, 9.0], [1.0, 0.0, 9.0]]
    """
    return _rows(path, header, os.stat(path).st_mtime_ns)


@lru_cache(maxsize=4)
def _rows(path: str, header: str, changed: int) -> np.ndarray:
    with open(path, encoding="utf-8") as file:
        if (first := file.readline().strip().replace(" ", "")) != header:
            raise ValueError(f"{path} must begin with the header {header}; got {first[:60]!r}")
        rows = np.loadtxt(file, delimiter=",", ndmin=2)
    return rows[np.lexsort((rows[:, 1], rows[:, 0]))]
