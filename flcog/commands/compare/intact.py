"""Whether a finished cell's ``metrics.csv`` is still the one with which it finished."""

import functools
import hashlib
import sys
from collections.abc import Sequence
from pathlib import Path

from flcog.run.metrics_rows import Row, read_rows
from flcog.run.round_order import fault_in

FINISHED = "finished"
"""The file in a finished cell's folder. It holds the run's identity and, in a second line, the digest of ``metrics.csv``."""


def table_of(folder: Path) -> Path | None:
    """The ``metrics.csv`` of a cell's run: the newest, if the run began anew."""
    tables = sorted(folder.glob("*/metrics.csv"), key=lambda path: path.stat().st_mtime_ns)
    return tables[-1] if tables else None


def rows_of(table: Path) -> list[Row]:
    """The rows up to where the file is damaged."""
    return list(_read(table)[0])


def mark(folder: Path, identity: str) -> str:
    """The text of the file that says that a cell has finished."""
    table = table_of(folder)
    return identity + (f"\nmetrics.csv {_digest(table)}\n" if table is not None else "")


def identity_in(folder: Path) -> str:
    """The identity of a finished cell's run; empty where the file does not say it."""
    return (_lines(folder) or [""])[0].strip()


def damage_in(folder: Path) -> str | None:
    """What is wrong with a finished cell's ``metrics.csv``, with its path; None where nothing is, or the cell has not finished."""
    lines, table = _lines(folder), table_of(folder)
    if lines is None or table is None:
        return None
    rows, damage = _read(table)
    said = lines[1].split()[-1] if len(lines) > 1 else ""
    if damage is None:
        rounds = [row["round"] for row in rows]
        damage = fault_in(rounds, 1)
    if damage is None and said and said != _digest(table):
        damage = "it is not as it was when the run finished"
    return None if damage is None else f"{table}: {damage}"


def tell(damages: Sequence[str | None], consequence: str = "") -> None:
    """Print each damage once, and that the run counts as unfinished."""
    for damage in filter(None, dict.fromkeys(damages)):
        print(f"{damage}. The run counts as unfinished{consequence}", file=sys.stderr, flush=True)


def _lines(folder: Path) -> list[str] | None:
    try:
        return (folder / FINISHED).read_text(errors="replace").splitlines()
    except OSError:
        return None


def _read(table: Path) -> tuple[list[Row], str | None]:
    about = table.stat()
    return _read_once(table, about.st_mtime_ns, about.st_size)


@functools.lru_cache(maxsize=4096)
def _read_once(table: Path, changed: int, size: int) -> tuple[list[Row], str | None]:
    return read_rows(table)


def _digest(table: Path) -> str:
    return hashlib.sha256(table.read_bytes()).hexdigest()[:16]
