"""Lightning's callbacks of a run: which of them cannot run, which are replaced, and in which order their hooks are called."""

from collections.abc import Sequence
from typing import Any

import lightning as L
from lightning.pytorch.utilities.exceptions import MisconfigurationException

from flcog.core.lightning_packages import is_lightnings, lightning_base, overrides
from flcog.core.users_hooks import name_hook
from flcog.run.lightning_trainer import LightningTrainer

REFUSED = {
    "StochasticWeightAveraging": "write a flcog.Method that keeps a mean of the global models and returns it from evaluate_at",
    "WeightAveraging": "write a flcog.Method that keeps a mean of the global models and returns it from evaluate_at",
    "GradientAccumulationScheduler": "trainer.accumulate_grad_batches accumulates the same number of batches in all rounds",
    "BatchSizeFinder": "the batch size decides the results: choose data.batch_size",
    "LearningRateFinder": "the learning rate of clients cannot be read off one model's loss: compare a few rates with flcog compare",
    "BaseFinetuning": "clients get a new optimizer in each round: freeze layers with requires_grad_(False) before the run",
    "ModelPruning": "clients' masks would differ: write a flcog.Method that prunes the global model in server_step",
    "SpikeDetection": "trainer.on_bad_update=drop leaves out clients whose update is not finite",
    "ThroughputMonitor": "the column time/round has the seconds of each round, and flcog bench measures clients and samples a second",
    "BasePredictionWriter": "trainer.predict returns the predictions, and flcog predict writes them",
}
"""Callbacks of Lightning's that federated training cannot run, with the counterpart or the reason."""


def check_callback(callback: Any) -> None:
    """Refuse callbacks that federated training cannot run."""
    for cls in type(callback).__mro__:
        if cls.__name__ in REFUSED and is_lightnings(cls):
            raise ValueError(f"{type(callback).__name__} cannot be used in federated training: {REFUSED[cls.__name__]}")


def _check_states(callbacks: Sequence[L.Callback]) -> None:
    """Refuse callbacks that would overwrite each other's state in checkpoints."""
    keys = [callback.state_key for callback in callbacks if overrides(callback, "Callback", "state_dict")]
    if twice := [key for key in keys if keys.count(key) > 1]:
        raise ValueError(
            f"{keys.count(twice[0])} callbacks have the state_key {twice[0]}, under which a checkpoint stores one state: list one of them, "
            "or write a property state_key that differs between them"
        )


def not_replaced(callbacks: Sequence[L.Callback], added: Sequence[L.Callback]) -> list[L.Callback]:
    """The trainer's callbacks without those that the module's ``configure_callbacks`` replaces by others of the same class or a subclass.

    Args:
        callbacks: the trainer's.
        added: the module's.
    """
    kinds = {type(each) for each in callbacks if any(isinstance(other, type(each)) for other in added)} - {L.Callback}
    return [each for each in callbacks if type(each) not in kinds]


def in_calling_order(callbacks: Sequence[L.Callback]) -> list[L.Callback]:
    """The callbacks in Lightning's order: those that write checkpoints come last, so that they save all values that others have logged."""
    for callback in callbacks:
        check_callback(callback)
    _check_states(callbacks)
    return sorted(callbacks, key=lambda callback: lightning_base(callback, "Checkpoint") is not None)


def around_module(callbacks: Sequence[L.Callback], hook: str) -> tuple[Sequence[L.Callback], Sequence[L.Callback]]:
    """The callbacks whose hook is called before the module's own, and those whose hook is called after it.

    As in Lightning, callbacks that monitor a figure come after the module's ``on_train_epoch_end``, in which it may log the figure.
    """
    if hook != "on_train_epoch_end":
        return callbacks, ()
    return [each for each in callbacks if not _monitors(each)], [each for each in callbacks if _monitors(each)]


def _monitors(callback: L.Callback) -> bool:
    return any(lightning_base(callback, kind) for kind in ("EarlyStopping", "Checkpoint"))


def is_up(callback: Any) -> bool:
    """Whether a callback is Lightning's timer, such as that of ``max_time``, and its time has passed."""
    left = callback.time_remaining() if lightning_base(callback, "Timer") else None
    return left is not None and left <= 0


def call_in_round(callback: L.Callback, hook: str, trainer: LightningTrainer, *arguments: Any) -> None:
    """Call a hook of one callback, and name it in an error."""
    try:
        getattr(callback, hook)(trainer, *arguments)
    except Exception as error:
        # Lightning's own callbacks raise these where a column is missing, for example.
        if is_lightnings(type(callback)) and isinstance(error, MisconfigurationException | RuntimeError):
            raise ValueError(f"{type(callback).__name__}: {' '.join(str(error).split())}") from error
        name_hook(error, callback, hook, f", round {trainer.current_epoch + 1}")
        raise
