"""A module's own ``training_step`` as a pure function, without a ``lightning.Trainer``, and the values that it logs."""

import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from operator import methodcaller
from typing import Any

import lightning as L
import torch
from lightning.pytorch.utilities.signature_utils import is_param_in_hook_signature
from torch import Tensor, nn

from flcog.core.global_streams import kept
from flcog.core.precision import number_dtype
from flcog.core.trees import Tree
from flcog.core.types import Params


def loss_of(module: nn.Module, result: Any) -> Tensor:
    """The loss in the return value of a ``training_step``."""
    loss = result.get("loss") if isinstance(result, Mapping) else result
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        got = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else repr(result)[:80]
        raise ValueError(
            f"{type(module).__name__}.training_step must return the loss, a tensor of one number, or a dict that holds it as "
            f"'loss'; got {got}"
        )
    return loss.reshape(())


def step_of(module: Any, batch: Tree, index: int) -> Callable[[Any], Any]:
    """The call of a module's own ``training_step``. As in Lightning, it gets ``batch_idx`` if it has such a parameter."""
    if not module.automatic_optimization:
        raise ValueError(
            f"{type(module).__name__} takes its steps itself (automatic_optimization = False), and a method of this run reads its loss: "
            "remove the method, or let training_step return the loss"
        )
    numbered = is_param_in_hook_signature(module.training_step, "batch_idx", min_args=2)
    return methodcaller("training_step", batch, *[index] * numbered)


class PureTrainer:
    """The trainer of a pure step, whose epoch is the round. A step that reads more of its trainer than this is not pure."""

    training, validating, testing, predicting, sanity_checking = True, False, False, False, False
    global_rank, local_rank, world_size, is_global_zero = 0, 0, 1, True

    def __init__(self, round: Any) -> None:
        self.current_epoch = round


@contextmanager
def among_rounds(module: L.LightningModule, round: Any) -> Iterator[None]:
    """Let a module find a :class:`PureTrainer` as ``self.trainer``."""
    before, module.trainer = module._trainer, PureTrainer(round)  # type: ignore[assignment]
    try:
        yield
    finally:
        module.trainer = before


OPTIONS = tuple(inspect.signature(L.LightningModule.log_dict).parameters)[2:]
"""The options of ``self.log`` and ``self.log_dict``, in the order in which both take them."""


@contextmanager
def logging_to(module: L.LightningModule, log: Callable[..., None]) -> Iterator[None]:
    """Redirect a module's ``self.log`` to a function, because there is no ``Trainer`` that would receive the values."""

    def one(name: str, value: Any, *given: Any, **options: Any) -> None:
        log(name, value, **dict(zip(OPTIONS, given, strict=False)), **options)

    def several(dictionary: Mapping[str, Any], *given: Any, **options: Any) -> None:
        for name, value in dictionary.items():
            one(name, value, *given, **options)

    before = {name: value for name, value in vars(module).items() if name in ("log", "log_dict")}
    vars(module).update(log=one, log_dict=several)
    try:
        yield
    finally:
        del module.__dict__["log"], module.__dict__["log_dict"]
        vars(module).update(before)


OF_A_SET = re.compile("^(train|val|valid|validation|test)/")
"""What names a set at the beginning of a logged value's name."""


def column_of(name: str) -> str:
    """The column of a logged value, without the name of its set.

    >>> [column_of(name) for name in ("val_loss", "train/loss", "test_f1", "margin", "val/cls/loss")]
    ['loss', 'loss', 'f1', 'margin', 'cls/loss']
    """
    return OF_A_SET.sub("", name).removeprefix("test_").removeprefix("val_").removeprefix("train_")


def columns_of(names: Iterable[str]) -> dict[str, str]:
    """The column of each name. Where several names have one column, the first has it, and the others have their own names.

    >>> columns_of(["val_loss", "acc", "loss"])
    {'val_loss': 'loss', 'acc': 'acc', 'loss': 'loss'}
    """
    found: dict[str, str] = {}
    for name in names:
        column = column_of(name)
        found[name] = name if column in found.values() else column
    return found


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
        with kept(self, "values"):
            self.values = {}
            yield self.values

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
