"""Lightning's hooks in federated training: some are called, some are refused, and the others never fire.

A warning names the user's hooks that never fire.
"""

import warnings
from collections.abc import Sequence
from typing import Any

import lightning as L
from torch import nn

from flcog.batch_hooks import OF_A_BATCH
from flcog.client_module import ClientModule, trains_itself
from flcog.core.lightning_packages import is_lightnings, lightning_base
from flcog.data import FederatedDataModule
from flcog.evaluation_hooks import OF_A_MODULE as OF_AN_EVALUATION

CALLED = {"forward", "training_step", "configure_optimizers", "configure_model", "prepare_data", "setup", "log", "log_dict"}
"""The hooks that are called on every module."""

EPOCH_HOOKS = (
    *("on_fit_start", "on_fit_end", "on_train_start", "on_train_end", "on_train_epoch_start", "on_train_epoch_end"),
    *("on_validation_start", "on_validation_end", "teardown"),
)
"""Hooks that ``fit`` calls once in a run or once in a round, because an epoch is a round."""

CALLED_BY_FIT = {*EPOCH_HOOKS, "configure_callbacks", "on_save_checkpoint", "on_load_checkpoint"}

CALLED_TO_EVALUATE = {
    kind: {f"{kind}_step"} | {name for name in OF_AN_EVALUATION if name.startswith(f"on_{kind}_")}
    for kind in ("validation", "test", "predict")
}
"""Hooks that are called on modules that define such a step themselves."""

OF_A_STEP = (
    *("on_train_batch_start", "on_train_batch_end", "on_before_zero_grad", "on_before_backward", "on_after_backward"),
    "on_before_optimizer_step",
)
"""Hooks of a local step, which modules and callbacks have."""

OF_A_MODULE = (*OF_A_STEP, "optimizer_step", "optimizer_zero_grad", "backward", "configure_gradient_clipping")
"""Hooks of a local step, including those that only modules have."""

CALLED_IN_CLIENTS = {*OF_A_MODULE, *OF_A_BATCH, "lr_scheduler_step"}
"""Hooks of a module that are called while a client trains by the faithful step."""

CALLED_WITHOUT_DATA = {"train_dataloader", "val_dataloader", "test_dataloader", "predict_dataloader"}
"""Hooks of a module that replace data, as in ``trainer.fit(model)``. As in Lightning, data that a verb gets take their place."""

CALLED_ON_DATA = {"prepare_data", "setup", "teardown", "on_exception", "state_dict", "load_state_dict", *OF_A_BATCH}

TOOLS = {
    *("print", "all_gather", "optimizers", "lr_schedulers", "manual_backward", "toggle_optimizer", "untoggle_optimizer"),
    *("toggled_optimizer", "clip_gradients", "freeze", "unfreeze", "to_onnx", "to_torchscript", "to_tensorrt"),
    *("load_from_checkpoint", "from_datasets", "save_hyperparameters", "remove_ignored_hparams"),
    *("to", "type", "cpu", "cuda", "double", "float", "half"),
}
"""Public methods that are not hooks, because users call them and Lightning does not."""


def check_hooks(model: nn.Module, data: Sequence[FederatedDataModule], warn: bool) -> None:
    """Refuse the user's hooks that would have changed the training, and warn about other hooks that are never called.

    Args:
        model: the client's module, or a bare network, which has no hooks.
        data: the data modules of the run.
        warn: whether this process prints the warning.
    """
    _check_kinds(model, data)
    idle = []
    modules: list[L.LightningModule | L.LightningDataModule] = [module.hooked for module in data]
    if lightning_base(model, "LightningModule"):
        modules.insert(0, model)  # type: ignore[arg-type]
    for module in modules:
        idle += [f"{type(module).__name__}.{name}" for name in written_hooks(module) if name not in _called_on(module)]
    if idle and warn:
        warnings.warn(
            f"these hooks of Lightning's are never called in federated training: {', '.join(idle)} (flcog.Callback and flcog.Method "
            "have hooks of their own; docs/lightning.md lists the hooks that are called)",
            stacklevel=2,
        )


def _check_kinds(model: nn.Module, data: Sequence[FederatedDataModule]) -> None:
    if not isinstance(model, nn.Module):
        raise ValueError(
            "the model must be a network, a flcog.ClientModule, such as flcog.Classifier(network), or a LightningModule; got "
            f"{type(model).__name__}"
        )
    if lightning_base(model, "LightningModule") and not isinstance(model, ClientModule) and not trains_itself(model):
        raise ValueError(
            f"{type(model).__name__} has no training_step: add a training_step that returns the loss, or use a flcog.ClientModule"
        )
    for module in data:
        if not isinstance(module, FederatedDataModule):
            raise ValueError(
                f"data must be a flcog.FederatedDataModule; got {type(module).__name__}: for arrays use flcog.datamodules.ArrayData, or "
                "write a subclass whose load() returns the sets to divide over clients"
            )


def written_hooks(module: L.LightningModule | L.LightningDataModule) -> list[str]:
    """Lightning's hooks that the user's class or object overrides."""
    base = lightning_base(module, "LightningModule")
    data = FederatedDataModule if isinstance(module, FederatedDataModule) else lightning_base(module, "LightningDataModule")
    known: tuple[Any, ...] = (data,) if base is None else (base, ClientModule)
    return [
        name
        for name in lightning_hooks(known[0])
        if name in vars(module) or getattr(type(module), name) not in [getattr(base, name) for base in known]
    ]


def lightning_hooks(base: type) -> list[str]:
    """Every public method of Lightning's base class that Lightning may call."""
    own = [vars(cls) for cls in base.__mro__ if is_lightnings(cls)]
    names = {name for members in own for name, value in members.items() if callable(value) and not name.startswith("_")}
    return sorted(names - TOOLS)


def _called_on(module: L.LightningModule | L.LightningDataModule) -> set[str]:
    """The hooks called on this module."""
    if lightning_base(module, "LightningModule") is None:
        return CALLED_ON_DATA.union(() if isinstance(module, FederatedDataModule) else CALLED_WITHOUT_DATA)
    written = written_hooks(module)
    everywhere = CALLED | CALLED_BY_FIT | CALLED_IN_CLIENTS | CALLED_WITHOUT_DATA
    return everywhere.union(*(hooks for kind, hooks in CALLED_TO_EVALUATE.items() if f"{kind}_step" in written))
