"""Call a module's own ``training_step``, ``validation_step`` and ``test_step`` as Lightning does, without a ``lightning.Trainer``."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import lightning as L
import torch
from lightning.pytorch.trainer.states import RunningStage
from lightning.pytorch.utilities.signature_utils import is_param_in_hook_signature
from torch import Tensor, nn
from torchmetrics import Metric

from flcog.core.precision import float64_device
from flcog.core.processes import Processes
from flcog.core.trees import Tree
from flcog.trainer_view import TrainerView


class NoLoss(ValueError):
    """A ``training_step`` returned None, which skips the step where clients are trained by the faithful step."""


def loss_of(module: nn.Module, result: Any) -> Tensor:
    """The loss in the return value of a ``training_step``."""
    loss = result.get("loss") if isinstance(result, Mapping) else result
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        got = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else repr(result)[:80]
        raise (NoLoss if result is None else ValueError)(
            f"{type(module).__name__}.training_step must return the loss, a tensor of one number, or a dict that holds it as "
            f"'loss'; got {got}"
        )
    return loss.reshape(())


def call_step(module: Any, name: str, batch: Tree, index: int) -> Any:
    """Call a module's own ``training_step`` or ``test_step``. As in Lightning, it gets ``batch_idx`` if it has such a parameter."""
    step = getattr(module, name)
    return step(batch, index) if is_param_in_hook_signature(step, "batch_idx", min_args=2) else step(batch)


ALONE: Mapping[str, Any] = {
    "logger": None,
    "loggers": (),
    "global_rank": 0,
    "local_rank": 0,
    "is_global_zero": True,
    "world_size": 1,
}
"""Attributes of a module's trainer where no run is known."""


class _StepTrainer(TrainerView):
    """The ``trainer`` of a module in a step: its epoch is the round. In evaluations the run's trainer has all other attributes."""

    def __init__(self, module: L.LightningModule, round: int, stage: str) -> None:
        super().__init__(STAGES[stage])
        self.current_epoch, self._run, self.model, self.lightning_module = round, cast(Any, module._trainer), module, module

    @property
    def sanity_checking(self) -> bool:
        return self._run is not None and self._run.sanity_checking

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "_run":  # copy and pickle look for such names
            raise AttributeError(name)
        if self._run is not None:
            return getattr(self._run, name)
        if name in ALONE:
            return ALONE[name]
        raise ValueError(
            f"a module asked its trainer for {name}, and there is no lightning.Trainer in federated training: self.current_epoch is "
            "the round, from 0, and batch_idx the client's local step; use these, or leave it out"
        )


def is_known_to_pure_steps(name: str) -> bool:
    """Whether ``self.trainer`` has this attribute while a pure ``training_step`` runs."""
    return name in ("current_epoch", "state", *ALONE) or hasattr(_StepTrainer, name)


STAGES = {
    "training": RunningStage.TRAINING,
    "validating": RunningStage.VALIDATING,
    "testing": RunningStage.TESTING,
    "predicting": RunningStage.PREDICTING,
}


@contextmanager
def among_rounds(module: L.LightningModule, round: int, stage: str = "training") -> Iterator[Any]:
    """Set ``self.current_epoch`` of a module with its own ``training_step`` to the round. Otherwise it would be 0.

    Args:
        module: the module.
        round: counted from 0.
        stage: ``training``, ``validating``, ``testing`` or ``predicting``, which is true of ``self.trainer``.
    """
    trainer = _StepTrainer(module, round, stage)
    with trainer.visible_to(module):
        yield trainer


@contextmanager
def logging_to(module: L.LightningModule, log: Callable[..., None]) -> Iterator[None]:
    """Redirect a module's ``self.log`` to a function, because there is no ``Trainer`` that would receive the values.

    Args:
        module: the module.
        log: takes the name, the value, and the option ``prog_bar`` and others of ``self.log`` by name.
    """

    def one(name: str, value: Any, prog_bar: bool = False, *args: Any, **options: Any) -> None:
        log(name, value, prog_bar=prog_bar, **options)

    def several(values: Mapping[str, Any], prog_bar: bool = False, *args: Any, **options: Any) -> None:
        for name, value in values.items():
            log(name, value, prog_bar=prog_bar, **options)

    before = {name: value for name, value in vars(module).items() if name in ("log", "log_dict")}
    vars(module).update(log=one, log_dict=several)
    try:
        yield
    finally:
        del module.__dict__["log"], module.__dict__["log_dict"]
        vars(module).update(before)


def column_of(name: str) -> str:
    """The column of a logged value, without the name of its set.

    >>> [column_of(name) for name in ("val_loss", "train/loss", "test_f1", "margin")]
    ['loss', 'loss', 'f1', 'margin']
    """
    return name.split("/")[-1].removeprefix("test_").removeprefix("val_").removeprefix("train_")


@dataclass
class Means:
    """Means of a module's logged values, weighted by the rows of each batch. Logged torchmetrics metrics are computed at the end."""

    sums: dict[str, float] = field(default_factory=dict)
    metrics: dict[str, Metric] = field(default_factory=dict)

    @contextmanager
    def of(self, module: L.LightningModule, rows: int) -> Iterator[None]:
        """Collect the values that the module logs for a batch of ``rows`` rows. The last value of each name counts."""
        logged: dict[str, float] = {}

        def log(name: str, value: Any, **options: Any) -> None:
            name = column_of(name)
            if isinstance(value, Metric):
                self.metrics[name] = value
            else:
                logged[name] = float(value.detach() if isinstance(value, Tensor) else value)

        with logging_to(module, log):
            yield
        for name, value in logged.items():
            self.sums[name] = self.sums.get(name, 0.0) + value * rows

    def over_processes(self, module: L.LightningModule, rows: int, processes: Processes) -> dict[str, float]:
        """The means over the rows of all processes.

        A process without rows has logged nothing, and must take part in each sum and in the communication of each metric.

        Args:
            module: the module that logged the values.
            rows: the number of rows of this process.
            processes: the processes.
        """
        paths = {id(layer): path for path, layer in module.named_modules()}
        logged = processes.gather((list(self.sums), {name: paths.get(id(metric)) for name, metric in self.metrics.items()}))
        sums = dict.fromkeys((name for names, _ in logged for name in names), 0.0) | self.sums
        for name, path in sorted({name: path for _, places in logged for name, path in places.items()}.items()):
            metric: Any = self.metrics[name] if path is None else module.get_submodule(path)
            sums[name] = float(metric.compute()) * rows
        names = sorted(sums)
        mine = [*(sums[name] for name in names), float(rows)]
        totals = processes.total(torch.tensor(mine, dtype=torch.float64, device=float64_device(processes.device)))
        return {name: float(total / totals[-1]) for name, total in zip(names, totals, strict=False)}


def reset_metrics(module: nn.Module) -> None:
    """Reset the torchmetrics metrics of a module."""
    for layer in module.modules():
        if isinstance(layer, Metric):
            layer.reset()
