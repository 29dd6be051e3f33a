"""A paper's figures: the entry ``published`` of a table's YAML file."""

import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

Quantity = Literal["score", "gain", "rounds", "seconds", "bytes", "saved"]
"""The compared metric (shares in percent), its difference from the compared row, the rounds to a target, a run's total time, its bytes in
both directions, and the saved per cent of the other row's bytes to the target."""

OF_TWO_ROWS = ("gain", "saved")
"""Quantities that compare a row with another one."""


class Figure(NamedTuple):
    """A published figure."""

    value: float
    spread: float | None = None  # the paper's ±
    beyond: bool = False  # whether it is a lower bound, such as the rounds to a target that was not reached
    within: float = 0.0  # half the width of a range, such as 3 for "14 to 20"


Published = Mapping[str, Mapping[str, Mapping[Quantity, Figure]]]
"""Figures by row, column and quantity."""


def read_published(published: Any, rows: Collection[str], columns: Collection[str], path: Path) -> Published:
    """Check and read the entry ``published`` of a file, which has figures for these rows and columns."""
    found: dict[str, dict[str, dict[Quantity, Figure]]] = {}
    for row, values in published.items():
        for name in [row] * (row not in rows) + [name for name in values if name not in columns]:
            raise ValueError(f"published in {path} names {name!r}, which is neither a row nor a column of the table")
        for column, given in values.items():
            figures = given if isinstance(given, dict) else {"score": given}
            if unknown := figures.keys() - get_args(Quantity):
                raise ValueError(f"published in {path} has {', '.join(unknown)}; it may have {', '.join(get_args(Quantity))}")
            where = f"published in {path} for {row}, {column}"
            found.setdefault(row, {})[column] = {name: _figure(value, name, where) for name, value in figures.items()}
    return found


def _figure(value: Any, quantity: Quantity, where: str) -> Figure:
    number = r"[-+]?\d+(?:\.\d+)?"
    if quantity in ("rounds", "saved") and (bound := re.fullmatch(rf"> ?({number})", str(value))):
        return Figure(float(bound[1]), beyond=True)
    if quantity == "gain" and (ends := re.fullmatch(rf"({number}) to ({number})", str(value))):
        low, high = sorted(map(float, ends.groups()))
        return Figure((low + high) / 2, within=(high - low) / 2)
    numbers = value if isinstance(value, list) else [value]
    if len(numbers) not in (1, 2) or not all(isinstance(number, int | float) for number in numbers):
        raise ValueError(
            f'{quantity} {where} must be 73.07, [73.07, 0.08] with its ±, "> 100" for rounds and saved, or "14 to 20" for a gain; '
            f"got {value!r}"
        )
    return Figure(*map(float, numbers))
