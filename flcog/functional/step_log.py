"""The values that a module's own ``training_step`` logs, and their means over a client's local steps."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from flcog.core.precision import number_dtype
from flcog.core.types import Params
from flcog.functional.own_steps import columns_of

LOGGED = "log/"
"""Names of the measurements that a module logs; the column's name without ``train/`` follows."""

STEPS = "steps/"
"""Names of the numbers of local steps in which a value was logged."""


class StepLog:
    """Receives the values of ``self.log`` in pure steps."""

    def __init__(self) -> None:
        self.in_progress_bar: set[str] = set()
        """The columns that the module logs with ``prog_bar=True``."""
        self._names: dict[str, None] = {}
        self.values: Params = {}
        """The values of this step by column, as tensors with one number."""

    def beside(self) -> "StepLog":
        """The log of a copy of the module, with the same names."""
        other = StepLog()
        other.in_progress_bar, other._names = self.in_progress_bar, self._names
        return other

    @contextmanager
    def of_a_step(self) -> Iterator[Params]:
        """Collect the values of one ``training_step``."""
        before, self.values = self.values, {}
        try:
            yield self.values
        finally:
            self.values = before

    def take(self, name: str, value: Any, prog_bar: bool = False, **options: Any) -> None:
        """Receive one value of ``self.log``."""
        self._names.setdefault(name)
        column = columns_of(self._names)[name]
        if column == "loss":
            return  # the column of the loss that the step returns
        if prog_bar:
            self.in_progress_bar.add(f"train/{column}")
        number = value.detach() if isinstance(value, Tensor) else torch.tensor(float(value))
        self.values[column] = number.reshape(()).to(number_dtype())


def add_step(totals: Params, loss: Tensor, logged: Mapping[str, Tensor], alive: Tensor | None = None) -> None:
    """Add a step's loss and logged values to a client's sums, in place."""
    totals["loss"] += loss if alive is None else torch.where(alive, loss, 0.0)
    for name, value in logged.items():
        for key, term in ((LOGGED + name, value), (STEPS + name, torch.ones_like(value))):
            term = term if alive is None else torch.where(alive, term, 0.0)
            totals[key] = totals[key] + term if key in totals else term


def add_in_place(totals: Params, loss: Tensor, logged: Mapping[str, Tensor], alive: Tensor) -> None:
    """The same in a compiled step, whose sums exist before it. Values without a sum are left out."""
    totals["loss"].add_(torch.where(alive, loss, 0.0))
    for name, value in logged.items():
        if LOGGED + name in totals:
            totals[LOGGED + name].add_(torch.where(alive, value, 0.0))
            totals[STEPS + name].add_(alive)


def zeros_for(names: Iterable[str], like: Tensor) -> Params:
    """Sums for these names, to which compiled steps add in place."""
    return {prefix + name: torch.zeros_like(like) for name in names for prefix in (LOGGED, STEPS)}


def means(totals: Params, num_steps: Tensor | int) -> Params:
    """The mean of each value over the steps in which it was logged, by name; NaN if it was never logged."""
    logged = {key: total / totals[STEPS + key.removeprefix(LOGGED)] for key, total in totals.items() if key.startswith(LOGGED)}
    return {"loss": totals["loss"] / num_steps} | logged
