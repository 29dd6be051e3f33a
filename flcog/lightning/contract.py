"""The reasons for which clients train by the faithful contract: in Lightning's loops, one after another, on the module itself."""

from collections.abc import Iterable
from typing import Any

import lightning as L
from lightning.pytorch import callbacks as lightnings
from lightning.pytorch.loops.fetchers import _DataLoaderIterDataFetcher
from lightning.pytorch.loops.utilities import _select_data_fetcher
from lightning.pytorch.trainer.states import RunningStage

from flcog.client.model import asks_again
from flcog.core.lightning_packages import overrides
from flcog.core.precision import DTYPES

OF_A_BATCH = ("on_before_batch_transfer", "transfer_batch_to_device", "on_after_batch_transfer")
"""Hooks of modules and data modules that change a batch."""

OF_A_STEP = (
    *("on_train_batch_start", "on_train_batch_end", "on_before_zero_grad", "on_before_backward", "on_after_backward"),
    "on_before_optimizer_step",
)
"""Hooks of a step, of modules and callbacks."""

OF_A_MODULE = (*OF_A_STEP, "optimizer_step", "optimizer_zero_grad", "backward", "configure_gradient_clipping", *OF_A_BATCH)
"""Hooks of a step that only modules have, too."""

PASSIVE = (
    *(lightnings.Checkpoint, lightnings.EarlyStopping, lightnings.LearningRateMonitor, lightnings.Timer, lightnings.ProgressBar),
    *(lightnings.ModelSummary, lightnings.DeviceStatsMonitor, lightnings.OnExceptionCheckpoint, lightnings.BasePredictionWriter),
    lightnings.LambdaCallback,  # its hooks are a user's
)
"""Lightning's own callbacks that look on. One batch of a round is enough for them."""


def reasons_for_lightning(trainer: Any, module: L.LightningModule, keeps_optimizers: bool) -> Iterable[str]:
    """The features that a pure step lacks, such as ``Lit.on_train_batch_end``, among empty texts."""
    name = type(module).__name__
    yield "" if module.automatic_optimization else f"{name} has automatic_optimization = False"
    for owner, hooks in ((module, OF_A_MODULE), (trainer.datamodule, OF_A_BATCH)):
        yield from (f"{type(owner).__name__}.{hook}" for hook in hooks if is_users(owner, hook))
    yield from map(_of_callback, trainer.callbacks)
    for config in trainer.lr_scheduler_configs:
        yield f"{name}.configure_optimizers returns a scheduler with the interval step" if config.interval == "step" else ""
    for optimizer in trainer.optimizers:
        kind = type(optimizer).__name__
        yield f"{kind} computes the loss several times in a step" if asks_again(optimizer) else ""
        yield (
            f"{kind} has a hook of its step"
            if optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks
            else ""
        )
        yield "" if optimizer.param_groups and optimizer.defaults else f"{name} has no optimizer"
    for path, parameter in module.named_parameters():
        hooked = parameter._backward_hooks or parameter._post_accumulate_grad_hooks
        yield f"{name}.{path} has a hook" if parameter.requires_grad and hooked else ""
    accumulates = trainer.accumulate_grad_batches
    yield f"accumulate_grad_batches={accumulates}" if accumulates > 1 else ""
    yield "" if trainer.precision in DTYPES else f"precision={trainer.precision}"
    yield "client_strategy" if trainer.together else ""
    yield "keep_optimizers" if keeps_optimizers else ""
    fetcher = _select_data_fetcher(trainer, RunningStage.TRAINING)
    yield f"{name}.training_step reads its loader itself" if isinstance(fetcher, _DataLoaderIterDataFetcher) else ""


def _of_callback(callback: L.Callback) -> str:
    """The hook of a callback that needs the batches of clients, or that may change the training between rounds."""
    name = type(callback).__name__
    if hooks := [hook for hook in OF_A_STEP if is_users(callback, hook)]:
        return "" if isinstance(callback, lightnings.ProgressBar) else f"{name}.{hooks[0]}"
    return name if is_active(callback) else ""


def is_active(callback: Any) -> bool:
    """Whether it is a callback of Lightning's, or derives from one, that does more than look on."""
    kind = next((kind for kind in type(callback).__mro__ if kind.__module__.startswith("lightning.")), None)
    return kind not in (None, L.Callback) and not isinstance(callback, PASSIVE)


def has_step(module: L.LightningModule, kind: str) -> bool:
    """Whether a module has a step of this kind, of a user's or of flcog's."""
    return f"{kind}_step" in vars(module) or overrides(module, "LightningModule", f"{kind}_step")


def is_users(owner: Any, hook: str) -> bool:
    """Whether a user has written this hook, in a class or on the object, and not Lightning (in other than its demos) or flcog."""
    if hook in vars(owner):
        return True
    kind = next((kind for kind in type(owner).__mro__ if hook in vars(kind)), None)
    if kind is None:
        return False
    where: str = getattr(vars(kind)[hook], "__module__", None) or kind.__module__
    return where.startswith("lightning.pytorch.demos") or where.partition(".")[0] not in ("lightning", "flcog")


BETWEEN_ROUNDS = (
    *("on_fit_start", "on_train_start", "on_train_epoch_start", "on_train_epoch_end", "on_validation_start", "on_validation_end"),
    *("on_validation_epoch_start", "on_validation_epoch_end", "on_test_start", "on_test_end", "on_test_epoch_start"),
    *("on_test_epoch_end", "on_train_end", "on_fit_end", "validation_step", "test_step", "on_load_checkpoint"),
)
"""Hooks between the training of clients, in which a user may change the module."""
