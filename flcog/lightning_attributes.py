"""The attributes of ``lightning.Trainer`` on the federated trainer, for scripts that read them after a run."""

from collections.abc import Mapping
from typing import Any

from flcog.client.messages import Split
from flcog.method import Callback
from flcog.run.lightning_callbacks import LightningCallbacks
from flcog.run.lightning_trainer import LightningTrainer
from flcog.run.session import Session

NAMES = (
    *("current_epoch", "global_step", "max_epochs", "estimated_stepping_batches", "num_training_batches"),
    *("callback_metrics", "logged_metrics", "progress_bar_metrics", "log_dir", "is_global_zero", "global_rank", "world_size"),
    *("num_devices", "state", "fitting", "interrupted", "training", "validating", "testing", "predicting", "sanity_checking"),
    *("train_dataloader", "val_dataloaders", "test_dataloaders", "datamodule", "lightning_module", "optimizers"),
    *("lr_scheduler_configs", "checkpoint_callback", "checkpoint_callbacks", "progress_bar_callback", "callbacks", "strategy"),
    *("check_val_every_n_epoch", "precision", "save_checkpoint", "should_stop"),
    *("early_stopping_callback", "early_stopping_callbacks", "max_steps", "num_nodes", "local_rank", "enable_validation"),
)
"""The attributes, which the page on Lightning explains."""

BATCHES: Mapping[str, Split] = {"num_val_batches": "val", "num_test_batches": "test"}
"""Attributes with the numbers of batches in the evaluation of the central sets."""


def _num_batches(run: Session, split: Split) -> list[int]:
    """As in Lightning a list with one number for each loader, which is empty without a central set."""
    samples = run.engine.central[split]
    return [] if samples is None else run.evaluator.num_batches(samples, split)


class LightningAttributes:
    """Gives the federated trainer the attributes of ``lightning.Trainer``. They describe the current or the last run."""

    observers: list[Callback]

    def __getattr__(self, name: str) -> Any:
        if name in BATCHES:
            return _num_batches(self._as_lightning(name)._run, BATCHES[name])
        if name == "is_last_batch":
            raise AttributeError(
                "trainer.is_last_batch describes a client's step: read self.trainer.is_last_batch in training_step"
            )
        if name not in NAMES:
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        return getattr(self._as_lightning(name), name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "should_stop":
            self._as_lightning(name).should_stop = value
        else:
            super().__setattr__(name, value)

    @property
    def _lightning(self) -> LightningCallbacks:
        return next(observer for observer in self.observers if isinstance(observer, LightningCallbacks))

    def _as_lightning(self, name: str) -> LightningTrainer:
        lightning = self._lightning
        if lightning.trainer is None:
            raise AttributeError(f"trainer.{name} describes a run, and this trainer has none yet: call fit, or prepare")
        return lightning.trainer
