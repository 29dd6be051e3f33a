"""Keeps a copy of a run's file before a resumed run changes it: ``config-1.yaml``, ``metrics-1.csv``."""

import itertools
from pathlib import Path

from flcog.core.files import replacing


def keep_earlier(path: Path) -> Path:
    """Copy a file that is about to change, with its permissions, to the first free number. An identical copy is not repeated."""
    for number in itertools.count(1):
        copy = path.with_name(f"{path.stem}-{number}{path.suffix}")
        if not copy.exists():
            with replacing(copy, permissions=path.stat().st_mode & 0o777) as file:
                file.write(path.read_bytes())
            return copy
        if copy.read_bytes() == path.read_bytes():
            return copy
    raise AssertionError
