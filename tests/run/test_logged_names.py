"""Callbacks and schedulers find a value under the name that a module logs, and that of its epoch under ``<name>_epoch``."""

from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from engine.test_lightning_hooks import Both, Plain
from harness import fit
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint

from flcog.logged_names import LoggedNames

TRAINED, VALIDATED = [1.0, 3.0, 2.0, 1.0], [5.0, 4.0, 6.0, 7.0]
"""The figures that a module logs in four rounds."""


class Logs(Plain):
    """Logs a figure of each round in training and one in validation."""

    trained, validated = "acc", "val_acc"
    options: dict[str, Any] = {"on_step": False, "on_epoch": True}
    follows = ""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.log(self.trained, TRAINED[self.current_epoch], **self.options)
        return super().training_step(batch, batch_idx)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log(self.validated, VALIDATED[self.current_epoch], **self.options)

    def test_step(self, batch: Any, batch_idx: int) -> None:
        pass

    def configure_optimizers(self) -> Any:
        optimizer: Any = super().configure_optimizers()
        if not self.follows:
            return optimizer
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, mode="max", patience=0, factor=0.5)
        return {"optimizer": optimizer, "lr_scheduler": plateau, "monitor": self.follows}


class Steps(Logs):
    trained, options = "train_f", {"on_step": True, "on_epoch": True}


class Alike(Logs):
    validated = "acc"


class Sees(L.Callback):
    """Keeps the callbacks' metrics of each hook."""

    def __init__(self) -> None:
        self.seen: list[dict[str, Any]] = []

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        self.seen.append({"hook": "validation", **trainer.callback_metrics})

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        self.seen.append({"hook": "training", **trainer.callback_metrics, "rate": trainer.optimizers[0].param_groups[0]["lr"]})


def run(tmp_path: Path, module: Plain, *callbacks: L.Callback, executor: str = "loop") -> Any:
    return fit(tmp_path, *callbacks, module=module, data=Both(), rounds=4, eval_every=1, executor=executor)  # type: ignore[arg-type]


@pytest.mark.parametrize("executor", ["loop", "vmap"])
def test_a_name_alone_is_the_value_that_was_logged_so(executor: str, tmp_path: Path) -> None:
    best, module = ModelCheckpoint(monitor="acc", mode="max", filename="{epoch}-{acc:.1f}"), Logs()
    trainer = run(tmp_path, module, EarlyStopping("acc", mode="max", patience=2), best, executor=executor)
    assert [float(trainer.callback_metrics[name]) for name in ("acc", "train_acc", "val_acc")] == [1, 1, 7]
    assert len(trainer.history) == 4 and Path(best.best_model_path).name == "epoch=1-acc=3.0.ckpt"
    assert len(run(tmp_path, Logs(), EarlyStopping("acc", mode="max", patience=1), executor=executor).history) == 3


@pytest.mark.parametrize("executor", ["loop", "vmap"])
def test_values_of_steps_and_epochs_have_the_name_of_the_epoch(executor: str, tmp_path: Path) -> None:
    best = ModelCheckpoint(monitor="val_acc_epoch", mode="max", filename="{epoch}-{val_acc_epoch:.1f}")
    stopping, sees = EarlyStopping("train_f_epoch", mode="max", patience=1), Sees()
    trainer = run(tmp_path, Steps(), stopping, best, sees, executor=executor)
    assert len(trainer.history) == 3 and Path(best.best_model_path).name == "epoch=2-val_acc_epoch=6.0.ckpt"
    assert [float(seen["train_f_epoch"]) for seen in sees.seen if seen["hook"] == "training"] == TRAINED[:3]
    assert "accuracy_epoch" not in trainer.callback_metrics and "acc_epoch" not in trainer.callback_metrics


@pytest.mark.parametrize(("kind", "name"), [(Logs, "acc"), (Steps, "train_f_epoch"), (Steps, "train_f")])
def test_a_scheduler_follows_a_value_under_its_name(kind: Any, name: str, tmp_path: Path) -> None:
    module, sees = kind(), Sees()
    module.follows = name
    run(tmp_path, module, sees)
    # The third value is no better than the second, so that the fourth round has half the rate.
    assert [seen["rate"] for seen in sees.seen if seen["hook"] == "training"] == [0.1, 0.1, 0.1, 0.05]


def test_a_name_of_two_sets_is_that_of_the_set_in_hand(tmp_path: Path) -> None:
    """As Lightning has it: the validation's while it ends, and the training's at the end of the round."""
    sees = Sees()
    run(tmp_path, Alike(), sees)
    ends = [[float(seen["acc"]) for seen in sees.seen if seen["hook"] == hook] for hook in ("validation", "training")]
    assert ends == [VALIDATED, TRAINED]


def test_a_name_that_nobody_logs_is_the_validations() -> None:
    names = LoggedNames()
    assert [names.of("train").column(name, both=False) for name in ("train_acc", "f1")] == ["acc", "f1"]
    named = names.named({"train/acc": 1, "val/acc": 2, "train/f1": 3})
    assert named == {"train/acc": 1, "train_acc": 1, "val/acc": 2, "val_acc": 2, "train/f1": 3, "train_f1": 3, "f1": 3}
