"""The attributes of ``lightning.Trainer`` on the federated trainer, for scripts that read them after a run."""

from typing import Any

from flcog.method import Callback
from flcog.run.lightning_callbacks import LightningCallbacks
from flcog.run.lightning_trainer import LightningTrainer

NAMES = (
    *("current_epoch", "global_step", "max_epochs", "estimated_stepping_batches", "num_training_batches"),
    *("callback_metrics", "logged_metrics", "progress_bar_metrics", "log_dir", "is_global_zero", "global_rank", "world_size"),
    *("num_devices", "state", "fitting", "interrupted", "training", "validating", "testing", "predicting", "sanity_checking"),
    *("train_dataloader", "val_dataloaders", "test_dataloaders", "datamodule", "lightning_module", "optimizers"),
    *("lr_scheduler_configs", "checkpoint_callback", "checkpoint_callbacks", "progress_bar_callback", "callbacks", "strategy"),
    *("check_val_every_n_epoch", "precision", "save_checkpoint", "should_stop"),
)
"""The attributes, which the page on Lightning explains."""


class LightningAttributes:
    """Gives the federated trainer the attributes of ``lightning.Trainer``. They describe the current or the last run."""

    observers: list[Callback]

    def __getattr__(self, name: str) -> Any:
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
