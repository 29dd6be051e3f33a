"""Call a module's own ``training_step``, ``validation_step`` and ``test_step`` as Lightning does, without a ``lightning.Trainer``."""

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, cast

import lightning as L
from lightning.pytorch.trainer.states import RunningStage
from lightning.pytorch.utilities.signature_utils import is_param_in_hook_signature
from torch import Tensor, nn
from torchmetrics import Metric

from flcog.core.lightning_packages import overrides
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


def call_step(module: Any, name: str, batch: Tree, index: int, *loader: int) -> Any:
    """Call a module's own ``training_step`` or ``test_step``. As in Lightning, it gets ``batch_idx`` if it has such a parameter.

    Args:
        module: the module.
        name: of the step.
        batch: the batch.
        index: of the batch.
        loader: the index of the batch's loader, if there are several.
    """
    step = getattr(module, name)
    return step(batch, index, *loader) if loader or is_param_in_hook_signature(step, "batch_idx", min_args=2) else step(batch)


def step_for(module: L.LightningModule, kind: str, loaders: int) -> str | None:
    """The kind of the module's own step for a set, if it has any. A single step serves validation and test sets.

    Args:
        module: the module.
        kind: of the set, ``validation`` or ``test``.
        loaders: the number of its loaders. A step without the parameter ``dataloader_idx`` is refused for several.
    """
    kinds = (kind, "test" if kind == "validation" else "validation")
    found = next((kind for kind in kinds if overrides(module, "LightningModule", f"{kind}_step")), None)
    name = f"{found}_step"
    if found and loaders > 1 and not is_param_in_hook_signature(getattr(module, name), "dataloader_idx", min_args=3):
        raise ValueError(
            f"{type(module).__name__}.{name} has no parameter dataloader_idx, and the {kind} set has {loaders} loaders: write "
            f"{name}(self, batch, batch_idx, dataloader_idx=0)"
        )
    return found


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


OF_A_SET = re.compile("^(train|val|valid|validation|test)/")
"""What names a set at the beginning of a logged value's name."""

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


OPTIONS = tuple(inspect.signature(L.LightningModule.log_dict).parameters)[2:]
"""The options of ``self.log`` and ``self.log_dict``, in the order in which both take them."""


@contextmanager
def logging_to(module: L.LightningModule, log: Callable[..., None]) -> Iterator[None]:
    """Redirect a module's ``self.log`` to a function, because there is no ``Trainer`` that would receive the values.

    Args:
        module: the module.
        log: takes the name, the value, and the options of ``self.log`` by name.
    """

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


def column_of(name: str) -> str:
    """The column of a logged value, without the name of its set.

    >>> [column_of(name) for name in ("val_loss", "train/loss", "test_f1", "margin", "val/cls/loss")]
    ['loss', 'loss', 'f1', 'margin', 'cls/loss']
    """
    return OF_A_SET.sub("", name).removeprefix("test_").removeprefix("val_").removeprefix("train_")


def reset_metrics(module: nn.Module) -> None:
    """Reset the torchmetrics metrics of a module."""
    for layer in module.modules():
        if isinstance(layer, Metric):
            layer.reset()


@contextmanager
def metrics_apart(module: nn.Module) -> Iterator[None]:
    """Let the torchmetrics metrics of a module begin anew, and give them their values back at the end."""
    metrics = [layer for layer in module.modules() if isinstance(layer, Metric)]
    # A reset clears lists in place.
    before = [
        {name: [*value] if isinstance(value, list) else value for name, value in vars(metric).items()} for metric in metrics
    ]
    reset_metrics(module)
    try:
        yield
    finally:
        for metric, values in zip(metrics, before, strict=True):
            vars(metric).update(values)
