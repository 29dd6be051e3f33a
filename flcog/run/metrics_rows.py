"""Reads the rows of a ``metrics.csv`` up to the first damaged line."""

import csv
from contextlib import suppress
from pathlib import Path

Row = dict[str, float]

LARGEST = 2**53
"""Rounds are smaller, so that a float represents them exactly."""


def read_rows(path: Path) -> tuple[list[Row], str | None]:
    """Read the rows before the first damage. Returns them with a description of the damage, or None."""
    rows: list[Row] = []
    lines = path.read_bytes().splitlines(keepends=True)
    try:
        columns = _cells(lines[0]) if lines else ["round"]
        if "round" not in columns or len(set(columns)) < len(columns):
            raise ValueError("it does not name the columns")
    except ValueError as error:
        return [], f"its first line is damaged ({error})"
    for number, line in enumerate(lines[1:], start=1):
        try:
            rows.append(_row(columns, _cells(line)))
        except ValueError as error:
            return rows, f"row {number} is damaged ({error})"
    return rows, None


def _cells(line: bytes) -> list[str]:
    if not line.endswith(b"\n"):
        raise ValueError("the line is cut off")
    if b"\0" in line:
        raise ValueError("it has NUL bytes")
    try:
        return next(csv.reader([line.decode()], strict=True))
    except UnicodeDecodeError:
        raise ValueError("it is not UTF-8") from None
    except (csv.Error, StopIteration) as error:
        raise ValueError(f"it is no CSV: {error}") from None


def _row(columns: list[str], cells: list[str]) -> Row:
    if len(cells) != len(columns):
        raise ValueError(f"it has {len(cells)} values for {len(columns)} columns")
    row = {name: _number(name, cell) for name, cell in zip(columns, cells, strict=True) if name and cell}
    if not (isinstance(row.get("round"), int) and 0 < row["round"] < LARGEST):
        raise ValueError(f"its round is {str(row.get('round', 'missing'))[:20]}")
    return row


def _number(name: str, text: str) -> float:
    for kind in (int, float):
        with suppress(ValueError):
            return kind(text)
    raise ValueError(f"{name} is {text[:20]!r}")
