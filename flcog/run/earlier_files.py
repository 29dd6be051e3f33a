"""Keeps a copy of a run's file before a resumed run changes it: ``config-1.yaml``, ``metrics-1.csv``."""

import itertools
from pathlib import Path

from flcog.core.files import replacing


def keep_earlier(path: Path) -> Path:
    """Copy a file that is about to change, under the first number that is free; once only, if an earlier copy is the same."""
    for number in itertools.count(1):
        copy = path.with_name(f"{path.stem}-{number}{path.suffix}")
        if not copy.exists():
            with replacing(copy) as file:
                file.write(path.read_bytes())
            return copy
        if copy.read_bytes() == path.read_bytes():
            return copy
    raise AssertionError
