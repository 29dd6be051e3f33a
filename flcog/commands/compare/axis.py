"""The ``figure`` of a table: a number that its rows or columns vary, such as epsilon or the share of attackers."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flcog.commands.compare.published import is_number

WANTED = (
    "be {label: TEXT, rows: {ROW: number}} for a line through rows, "
    "or {label: TEXT, columns: {PANEL: {COLUMN: number}}} for a line of each row"
)


@dataclass(frozen=True)
class Axis:
    """The horizontal axis of the figure.

    Args:
        label: the text of the horizontal axis.
        rows: the number of each row on the line. Other rows are horizontal lines.
        columns: for each panel, the numbers of its columns.
    """

    label: str
    rows: Mapping[str, float]
    columns: Mapping[str, Mapping[str, float]]


def read_axis(value: Any, rows: Mapping[str, Any], columns: Mapping[str, Any], path: Path) -> Axis | None:
    """Check the ``figure`` of a table's file."""
    if value is None:
        return None
    kinds = {"rows", "columns"} & set(value) if isinstance(value, dict) else ()
    if len(kinds) != 1 or set(value) - {"label", *kinds} or not isinstance(value.get("label"), str):
        raise ValueError(f"figure in {path} must {WANTED}; got {value!r}")
    (kind,) = kinds
    parts = {"": value[kind]} if kind == "rows" else value[kind]
    if not isinstance(parts, dict) or not all(_are_numbers(part) for part in parts.values()):
        raise ValueError(f"figure in {path} must {WANTED}; got {value!r}")
    known = rows if kind == "rows" else columns
    if unknown := [str(name) for part in parts.values() for name in part if str(name) not in known]:
        raise ValueError(f"figure in {path} names {unknown[0]}; the {kind} of the table are {', '.join(known)}")
    numbers = {str(panel): {str(name): float(number) for name, number in part.items()} for panel, part in parts.items()}
    return Axis(value["label"], numbers[""], {}) if kind == "rows" else Axis(value["label"], {}, numbers)


def _are_numbers(part: Any) -> bool:
    return isinstance(part, dict) and len(part) > 1 and all(is_number(number) for number in part.values())
