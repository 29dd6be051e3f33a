"""A paper's figures: the entry ``published`` of a table's YAML file."""

import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, get_args

Quantity = Literal["score", "gain", "rounds", "seconds", "bytes", "saved"]
"""The compared metric (shares in percent), its difference from the compared row, the rounds to a target, a run's total time, its bytes in
both directions, and the saved per cent of the other row's bytes to the target."""

OF_TWO_ROWS = ("gain", "saved")
"""Quantities that compare a row with another one."""

MAY_BE_BEYOND = ("rounds", "saved")
"""Quantities for which a paper may only give a lower bound, because the target was not reached."""


@dataclass(frozen=True)
class Figure:
    """A published figure.

    Args:
        value: the figure, or a lower bound for it.
        spread: the paper's ±, or None.
        beyond: whether the value is a lower bound, such as the rounds to a target that was not reached.
        within: half the width of a range, such as 3 for "14 to 20".
        rounding: the largest rounding error: half of the last digit that the paper prints.
    """

    value: float
    spread: float | None = None
    beyond: bool = False
    within: float = 0.0
    rounding: float = field(default=0.0, compare=False)


NUMBER = r"[-+]?\d+(?:\.\d+)?"

Published = Mapping[str, Mapping[str, Mapping[Quantity, Figure]]]
"""Figures by row, column and quantity."""


def read_published(value: Any, rows: Collection[str], columns: Collection[str], path: Path) -> Published:
    """Check and read the entry ``published``.

    Args:
        value: figures by row and column. A number or ``[mean, ±]`` is a score. A mapping may have score, gain, rounds, seconds, bytes and
            saved. Rounds and saved may be "> 100", if the paper did not reach the target; a gain may be a range, "14 to 20".
        rows: the table's rows.
        columns: the columns that may have figures.
        path: the table's file.
    """
    published = value or {}
    if not isinstance(published, dict) or not all(isinstance(values, dict) for values in published.values()):
        raise ValueError(f"published in {path} must be figures by row and column; got {published!r}")
    for row, values in published.items():
        for name in [row] * (str(row) not in rows) + [name for name in values if str(name) not in columns]:
            raise ValueError(f"published in {path} names {str(name)!r}, which is neither a row nor a column of the table")
    where = f"published in {path}"
    return _with_rounding(
        {
            str(row): {str(column): _quantities(given, where, f"{row}, {column}") for column, given in values.items()}
            for row, values in published.items()
        }
    )


def without_comparisons(published: Published, rows: Collection[str]) -> Published:
    """The figures without the gains and savings of these rows."""
    return {
        row: {
            column: {name: figure for name, figure in figures.items() if row not in rows or name not in OF_TWO_ROWS}
            for column, figures in cells.items()
        }
        for row, cells in published.items()
    }


def _with_rounding(published: Published) -> Published:
    """Add the rounding. YAML drops final zeros: if another figure is 73.07, then 53.2 was printed as 53.20."""
    digits: dict[Quantity, int] = {}
    for figures in (figures for cells in published.values() for figures in cells.values()):
        digits |= {name: max(digits.get(name, 0), _digits(figure.value)) for name, figure in figures.items()}
    return {
        row: {
            column: {name: replace(figure, rounding=0.5 * 10.0 ** -digits[name]) for name, figure in figures.items()}
            for column, figures in cells.items()
        }
        for row, cells in published.items()
    }


def _digits(value: float) -> int:
    """The number of digits after the decimal point."""
    return len(f"{value:.10f}".rstrip("0").rpartition(".")[2])


def _quantities(value: Any, where: str, cell: str) -> Mapping[Quantity, Figure]:
    value = value if isinstance(value, dict) else {"score": value}
    unknown = [name for name in value if name not in get_args(Quantity)]
    if unknown or not value:
        raise ValueError(f"{where} may have {', '.join(get_args(Quantity))} for a cell; {cell.rstrip(', ')} is {value!r}")
    return {name: _figure(given, name, where, cell) for name, given in value.items()}


def _figure(value: Any, quantity: Quantity, where: str, cell: str) -> Figure:
    if isinstance(value, str) and quantity in MAY_BE_BEYOND and re.fullmatch(r">?\s*\d+(\.\d+)?\s*", value):
        return Figure(float(value.removeprefix(">")), beyond=value.startswith(">"))
    if isinstance(value, str) and quantity == "gain" and (ends := re.fullmatch(rf"({NUMBER}) to ({NUMBER})", value)):
        low, high = sorted(map(float, ends.groups()))
        return Figure((low + high) / 2, within=(high - low) / 2)
    numbers = value if isinstance(value, list) else [value]
    if len(numbers) not in (1, 2) or not all(map(is_number, numbers)):
        more = {"gain": ', or a range "14 to 20"'} | {name: f', or for {name} "> 100"' for name in MAY_BE_BEYOND}
        also = more.get(quantity, "")
        raise ValueError(f"{where} must be figures, 73.07 or [73.07, 0.08] with its ±{also}; {cell.rstrip(', ')} is {value!r}")
    value, *spread = map(float, numbers)
    return Figure(value, spread[0] if spread else None)


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
