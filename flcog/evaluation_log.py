"""The values that a module's own ``validation_step`` or ``test_step`` logs, and their figures over a set."""

import math
import operator
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import lightning as L
import numpy as np
import torch
from torch import Tensor
from torchmetrics import Metric

from flcog.core.monitor import OF_A_LOADER
from flcog.core.processes import Processes
from flcog.logged_names import SetNames
from flcog.own_steps import logging_to

JOINS: Mapping[str, Any] = {"mean": operator.add, "sum": operator.add, "max": np.maximum, "min": np.minimum}
"""How the values of two batches are put together, by the name of the reduction."""

POOLED = "pooled"
"""The reduction of figures that need all samples, such as those of a metric, so that two of them cannot be put together."""

REDUCTIONS: Mapping[Any, str] = {
    **{name: name for name in JOINS},
    **{getattr(torch, name): name for name in JOINS},
    "avg": "mean",
    sum: "sum",
    max: "max",
    min: "min",
}
"""The names of the reductions that ``reduce_fx`` may ask for, as in Lightning."""


class Logged(NamedTuple):
    """A value over the batches that logged it.

    Args:
        reduction: a key of ``JOINS``, or ``POOLED``.
        total: the sum, the maximum or the minimum of the values; of a mean the sum of the values times their weights.
        weight: the number of rows of these batches, or the sum of the ``batch_size`` that the module gives.
    """

    reduction: str
    total: float
    weight: float

    def joined(self, other: "Logged") -> "Logged":
        """The value over the batches of both."""
        return Logged(self.reduction, float(JOINS[self.reduction](self.total, other.total)), self.weight + other.weight)

    @property
    def value(self) -> float:
        """The figure."""
        if self.reduction != "mean":
            return self.total
        return self.total / self.weight if self.weight else math.nan


@dataclass
class EvaluationLog:
    """Receives the values of ``self.log`` in the evaluation of a set. Logged torchmetrics metrics are computed at the end."""

    names: SetNames = field(default_factory=SetNames)
    """The names of the values, which may also be known from earlier evaluations."""
    values: dict[str | None, Logged] = field(default_factory=dict)
    """The values by column; those that the step returns as None, because they are the loss only if the module logs no loss."""
    metrics: dict[str, Metric] = field(default_factory=dict)
    _of_the_set: set[str | None] = field(default_factory=set)

    @contextmanager
    def of(self, module: L.LightningModule, rows: int, whole: bool = False, loader: int | None = None) -> Iterator[None]:
        """Collect the values that the module logs for a batch. The last value of each name counts.

        Args:
            module: the module.
            rows: the number of rows of the batch.
            whole: whether the values describe the whole set. They then replace the values of its batches, as in Lightning.
            loader: the index of the batch's loader, which the names tell unless ``add_dataloader_idx`` is False; None if there is one.
        """
        logged: dict[str, Logged] = {}

        def log(name: str, value: Any, reduce_fx: Any = "mean", batch_size: int | None = None, **options: Any) -> None:
            if loader is not None and options.get("add_dataloader_idx", True):
                name = f"{name}{OF_A_LOADER}{loader}"
            column = self.names.column(name, bool(options.get("on_step")) and options.get("on_epoch") is not False)
            if isinstance(value, Metric):
                self.metrics[column] = value
                return
            reduction = _reduction(name, reduce_fx)
            weight = rows if whole or batch_size is None else int(batch_size)
            number = float(value.detach() if isinstance(value, Tensor) else value)
            logged[column] = Logged(reduction, number * weight if reduction == "mean" else number, weight)

        with logging_to(module, log):
            yield
        for column, value in logged.items():
            self._add(column, value, whole)

    def take_result(self, result: Any, rows: int) -> None:
        """Receive what the step returns for a batch of ``rows`` rows."""
        if isinstance(result, Tensor) and result.numel() == 1:
            self._add(None, Logged("mean", float(result.detach()) * rows, rows))

    def _add(self, column: str | None, value: Logged, whole: bool = False) -> None:
        before = None if whole or column in self._of_the_set else self.values.get(column)
        (self._of_the_set.add if whole else self._of_the_set.discard)(column)
        if before is not None and before.reduction != value.reduction:
            raise ValueError(
                f"{column} is logged with reduce_fx={before.reduction} and with {value.reduction}: choose one of them"
            )
        self.values[column] = value if before is None else before.joined(value)

    def over_processes(self, module: L.LightningModule, rows: int, processes: Processes) -> dict[str, Logged]:
        """The values over the rows of all processes. As in Lightning, logged metrics are reset, and no others.

        A process without rows has no values, and must take part in the communication of each metric.

        Args:
            module: the module that logged the values.
            rows: the number of rows of this process.
            processes: the processes.
        """
        paths = {id(layer): path for path, layer in module.named_modules()}
        places = {name: paths.get(id(metric)) for name, metric in self.metrics.items()}
        everywhere = processes.gather((self.values if rows else {}, places, rows, self.names))
        self.names.join([names for *_, names in everywhere])
        found: dict[Any, Logged] = {}
        for values, *_ in everywhere:
            found |= {column: found[column].joined(value) if column in found else value for column, value in values.items()}
        counts, metrics = [count for _, _, count, _ in everywhere], list[Any]()
        for name, path in sorted({name: path for _, places, *_ in everywhere for name, path in places.items()}.items()):
            metric: Any = self.metrics[name] if path is None else module.get_submodule(path)
            value = float(metric.compute())
            found[name] = Logged(POOLED, sum(value * count for count in counts) / sum(counts), sum(counts))
            metrics.append(metric)
        for metric in metrics:
            metric.reset()
        returned = found.pop(None, None)
        if returned is not None:
            found.setdefault("loss", returned)
        return {name: found[name] for name in sorted(found)}


def joins_of(logged: Mapping[str, Logged], pooled: set[str], count: int) -> dict[str, tuple[str, float]]:
    """How hosts put together those figures of a set that are no means over all of its rows: the reduction, and the weight per row.

    Args:
        logged: the logged values.
        pooled: other figures that need all samples.
        count: the number of rows.
    """
    joins = dict.fromkeys(sorted(pooled - logged.keys()), (POOLED, 1.0))
    return joins | {name: (each.reduction, each.weight / count) for name, each in logged.items() if each[::2] != ("mean", count)}


def _reduction(name: str, reduce_fx: Any) -> str:
    """The name of the reduction that a module asks for."""
    reduction = REDUCTIONS.get(reduce_fx.lower() if isinstance(reduce_fx, str) else reduce_fx)
    if reduction is None:
        raise ValueError(
            f"{name} is logged with reduce_fx={getattr(reduce_fx, '__name__', reduce_fx)}: choose {', '.join(JOINS)}, or log a metric of "
            "torchmetrics, which can reduce in other ways"
        )
    return reduction
