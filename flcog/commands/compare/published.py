"""A paper's figures: the entry ``published`` of a table's YAML file."""

import math
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
    if not isinstance(published, dict) or not all(isinstance(values, dict) for values in published.values()):
        raise ValueError(f"published in {path} must be figures by row and column; got {published!r}")
    for row, values in published.items():
        for name in [row] * (row not in rows) + [name for name in values if name not in columns]:
            raise ValueError(f"published in {path} names {name!r}, which is neither a row nor a column of the table")
    return {
        row: {column: _quantities(given, f"published in {path} for {row}, {column}") for column, given in values.items()}
        for row, values in published.items()
    }


def _quantities(value: Any, where: str) -> Mapping[Quantity, Figure]:
    value = value if isinstance(value, dict) else {"score": value}
    if not value or value.keys() - get_args(Quantity):
        raise ValueError(f"{where} may have {', '.join(get_args(Quantity))}; got {value!r}")
    return {name: _figure(given, name, f"{name} {where}") for name, given in value.items()}


def _figure(value: Any, quantity: Quantity, where: str) -> Figure:
    number = r"[-+]?\d+(?:\.\d+)?"
    if quantity in ("rounds", "saved") and (bound := re.fullmatch(rf"(>?)\s*({number})", str(value))):
        return Figure(float(bound[2]), beyond=bool(bound[1]))
    if quantity == "gain" and (ends := re.fullmatch(rf"({number}) to ({number})", str(value))):
        low, high = sorted(map(float, ends.groups()))
        return Figure((low + high) / 2, within=(high - low) / 2)
    numbers = value if isinstance(value, list) else [value]
    if len(numbers) not in (1, 2) or not all(map(is_number, numbers)):
        raise ValueError(
            f'{where} must be 73.07, [73.07, 0.08] with its ±, "> 100" for rounds and saved, or "14 to 20" for a gain; got {value!r}'
        )
    return Figure(float(numbers[0]), float(numbers[1]) if len(numbers) == 2 else None)


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
