"""The values that a module's own ``training_step`` logs, and their means over a client's local steps."""

import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torchmetrics import Metric

from flcog.core.precision import number_dtype
from flcog.core.types import Params
from flcog.logged_names import LoggedNames
from flcog.own_steps import reset_metrics

LOGGED = "log/"
"""Names of the measurements that a module logs; the column's name without ``train/`` follows."""

STEPS = "steps/"
"""Names of the numbers of local steps in which a value was logged."""

ROUNDING = 1e-3
"""Logged and returned losses that differ by no more are equal, in any precision."""


class StepLog:
    """Receives the values of ``self.log`` in a module's training.

    Args:
        module: the module.
        other: of another copy of the module, with which this one shares the names that were announced.
    """

    def __init__(self, module: nn.Module, other: "StepLog | None" = None) -> None:
        self._module = module
        self.values: Params = {}
        """The values of this step by column, as tensors with one number."""
        self.metrics: dict[str, Metric] = {}
        """Metrics of torchmetrics, which accumulate over a client's steps."""
        self.in_progress_bar: set[str] = set() if other is None else other.in_progress_bar
        self.names: LoggedNames = LoggedNames() if other is None else other.names
        """The names of the values that the module logs in training and in evaluations."""
        self._explained: set[str] = set() if other is None else other._explained
        self._compared: set[str] = set() if other is None else other._compared
        self._has_metrics = any(isinstance(layer, Metric) for layer in module.modules())

    @contextmanager
    def of_a_step(self) -> Iterator[Params]:
        """Collect the values of one ``training_step``, apart from those of hooks."""
        before, self.values = self.values, {}
        try:
            yield self.values
        finally:
            self.values = before

    def take(self, name: str, value: Any, prog_bar: bool = False, **options: Any) -> None:
        """Receive one value of ``self.log``."""
        both = bool(options.get("on_epoch")) and options.get("on_step") is not False
        column = self.names.of("train").column(name, both, shared="loss")  # the returned loss replaces a logged one
        if prog_bar:
            self.in_progress_bar.add(f"train/{column}")
        self._explain(name, column, options)
        if isinstance(value, Metric):
            self.metrics[column] = value
        else:
            self.values[column] = self._number(name, value)

    def compare(self, loss: Tensor, logged: Mapping[str, Tensor], returned: bool = True) -> None:
        """Say once that the module logs another value as the loss than that of the column ``train/loss``.

        Args:
            loss: of the first step that logs a value of this name.
            logged: the values that this step has logged.
            returned: whether ``training_step`` has returned the loss, which is otherwise the sum of those of ``manual_backward``.
        """
        if "loss" not in logged or "loss" in self._compared:
            return
        self._compared.add("loss")
        value, counted = float(logged["loss"]), float(loss.detach())
        if math.isfinite(value) and not math.isclose(value, counted, rel_tol=ROUNDING, abs_tol=ROUNDING):
            names = [name for name, column in self.names.of("train").columns.items() if column == "loss"]
            other, column = (
                ("training_step returns", "the returned loss")
                if returned
                else ("manual_backward gets", "the sum of these losses")
            )
            warnings.warn(
                f"{type(self._module).__name__} logs {' and '.join(names)} with another value than {other} ({value:.4g}, not "
                f"{counted:.4g}): its column train/loss is {column}; log the value under another name, such as train_objective",
                stacklevel=2,
            )

    def begin_client(self) -> None:
        """Forget the metrics of the last client."""
        if self._has_metrics:
            self.metrics.clear()
            reset_metrics(self._module)

    def measured(self) -> Params:
        """The logged metrics of torchmetrics over the client's steps. Each process computes those of its own clients."""
        found = {}
        for name, metric in self.metrics.items():
            before, metric.distributed_available_fn = metric.distributed_available_fn, lambda: False
            try:
                found[LOGGED + name] = metric.compute().detach().to(number_dtype())
            finally:
                metric.distributed_available_fn = before
        return found

    def _number(self, name: str, value: Any) -> Tensor:
        if not isinstance(value, Tensor):
            device = next(self._module.parameters()).device
            return torch.full((), float(value), device=device, dtype=number_dtype())
        if value.numel() != 1:
            raise ValueError(
                f"{type(self._module).__name__} logs {name} with shape {list(value.shape)}: log a single number, such as its mean"
            )
        return value.detach().reshape(()).to(number_dtype())

    def _explain(self, name: str, column: str, options: Mapping[str, Any]) -> None:
        """Say once which options of ``self.log`` mean something else here."""
        if name in self._explained:
            return
        self._explained.add(name)
        reduction = getattr(options.get("reduce_fx", "mean"), "__name__", options.get("reduce_fx", "mean"))
        given = ["on_step=True"] * bool(options.get("on_step")) + [f"reduce_fx={reduction}"] * (reduction != "mean")
        if given:
            warnings.warn(
                f"{type(self._module).__name__} logs {name} with {' and '.join(given)}: its column train/{column} is the mean over the "
                "local steps and clients of a round",
                stacklevel=2,
            )


@contextmanager
def between_rounds(module: nn.Module, copies: Iterable[nn.Module]) -> Iterator[None]:
    """Refuse to compute metrics that clients have updated: each client begins with new ones, so that they cover the last client alone.

    Args:
        module: the module, whose hooks may update metrics themselves.
        copies: the modules of threads.
    """
    updated = {name for each in (module, *copies) for name, metric in _metrics(each) if metric._update_count}
    computes = [(name, metric, metric.compute) for name, metric in _metrics(module) if name in updated]
    for name, metric, compute in computes:
        metric.compute = partial(_computed, name, metric, metric._update_count, compute)  # type: ignore[method-assign]
    try:
        yield
    finally:
        for _, metric, compute in computes:
            metric.compute = compute  # type: ignore[method-assign]


def _metrics(module: nn.Module) -> Iterator[tuple[str, Metric]]:
    return ((name, layer) for name, layer in module.named_modules() if isinstance(layer, Metric))


def _computed(name: str, metric: Metric, count: int, compute: Callable[[], Any]) -> Any:
    if metric._update_count == count:
        raise ValueError(
            f"self.{name}.compute() between rounds would cover the last client alone: log the metric in training_step, as "
            f'self.log("{name}", self.{name}), and its column is the mean over the clients'
        )
    return compute()


def add_step(totals: Params, loss: Tensor, logged: Mapping[str, Tensor], alive: Tensor | None = None) -> None:
    """Add a step's loss and logged values to a client's sums, in place.

    Args:
        totals: the sums, with the loss as ``loss``.
        loss: the task loss.
        logged: the other values.
        alive: under vmap, the clients that still train.
    """
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
