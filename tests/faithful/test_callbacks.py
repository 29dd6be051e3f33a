"""Every callback that Lightning ships works in a run of two rounds, or is refused with its reason."""

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from harness import few_quickly, make_trainer
from lightning.pytorch import callbacks as lightnings
from lightning.pytorch.loggers import CSVLogger
from torch import Tensor, nn

from faithful.side_by_side import Lit, Loaders, loader
from flcog.datamodules import LightningData


class Transfers(Lit):
    """A network with a pretrained part, and without BatchNorm."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone, self.net[1] = nn.Linear(6, 6), nn.LayerNorm(8)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return super().training_step((self.backbone(batch[0]), batch[1]), batch_idx)

    def predict_step(self, batch: Any, batch_idx: int) -> Any:
        return self.net(batch[0])

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD([value for value in self.parameters() if value.requires_grad], lr=0.1)


class Finetunes(lightnings.BaseFinetuning):
    """A user's own schedule."""

    def freeze_before_training(self, module: Any) -> None:
        self.freeze(module.backbone)

    def finetune_function(self, module: Any, epoch: int, optimizer: Any) -> None:
        if epoch == 1:
            self.unfreeze_and_add_param_group(module.backbone, optimizer, initial_denom_lr=2.0)


class Writes(lightnings.BasePredictionWriter):
    seen = 0

    def write_on_batch_end(self, *args: Any) -> None:
        self.seen += 1


MADE: dict[str, Callable[[Path], L.Callback]] = {
    "BackboneFinetuning": lambda root: lightnings.BackboneFinetuning(1, verbose=False),
    "BaseFinetuning": lambda root: Finetunes(),
    "BasePredictionWriter": lambda root: Writes("batch"),
    "Callback": lambda root: L.Callback(),
    "Checkpoint": lambda root: lightnings.Checkpoint(),
    "DeviceStatsMonitor": lambda root: lightnings.DeviceStatsMonitor(),
    "EMAWeightAveraging": lambda root: lightnings.EMAWeightAveraging(decay=0.5),
    "EarlyStopping": lambda root: lightnings.EarlyStopping("val_loss"),
    "GradientAccumulationScheduler": lambda root: lightnings.GradientAccumulationScheduler({0: 1, 1: 2}),
    "LambdaCallback": lambda root: lightnings.LambdaCallback(on_train_batch_end=lambda *args: None),
    "LearningRateMonitor": lambda root: lightnings.LearningRateMonitor("step"),
    "ModelCheckpoint": lambda root: lightnings.ModelCheckpoint(monitor="val_loss", save_top_k=1, save_last=True),
    "ModelPruning": lambda root: lightnings.ModelPruning("l1_unstructured", amount=0.5, make_pruning_permanent=True),
    "ModelSummary": lambda root: lightnings.ModelSummary(),
    "OnExceptionCheckpoint": lambda root: lightnings.OnExceptionCheckpoint(str(root)),
    "ProgressBar": lambda root: lightnings.ProgressBar(),
    "RichModelSummary": lambda root: lightnings.RichModelSummary(),
    "RichProgressBar": lambda root: lightnings.RichProgressBar(),
    "SpikeDetection": lambda root: lightnings.SpikeDetection(exclude_batches_path=str(root / "excluded.json")),
    "StochasticWeightAveraging": lambda root: lightnings.StochasticWeightAveraging(0.2, swa_epoch_start=1),
    "ThroughputMonitor": lambda root: lightnings.ThroughputMonitor(lambda batch: len(batch[0]), window_size=4),
    "Timer": lambda root: lightnings.Timer(timedelta(minutes=9)),
    "TQDMProgressBar": lambda root: lightnings.TQDMProgressBar(),
    "WeightAveraging": lambda root: lightnings.WeightAveraging(),
}
REFUSED = ("BatchSizeFinder", "LearningRateFinder")


def federated(root: Path, *callbacks: L.Callback, module: Any = None, **options: Any) -> Any:
    """A run with two clients in two rounds, a validation set and a tracker."""
    given = {"rounds": 2, "clients_per_round": 2, "local_epochs": 1, "executor": "auto", "eval_every": 1, "precision": "32-true"}
    trainer = make_trainer(root, *callbacks, **given | options)
    trainer.logger = CSVLogger(str(root / "csv"))
    torch.manual_seed(0)
    data = LightningData(Loaders(loader(24, shuffle=True), loader(16)), num_clients=2)
    trainer.fit(module or Transfers(), data)
    return trainer


def test_the_table_is_complete() -> None:
    assert {*MADE, *REFUSED} == set(lightnings.__all__)


@pytest.mark.parametrize("name", few_quickly(MADE, 8))
def test_it_works(name: str, tmp_path: Path) -> None:
    callback = MADE[name](tmp_path)
    trainer = federated(tmp_path, callback)
    assert len(trainer.history) == 2 and trainer.history[-1]["val/loss"] > 0
    assert any(not torch.equal(value, Transfers().state_dict()[name]) for name, value in trainer.model.state_dict().items())
    if isinstance(callback, Writes):
        trainer.predict(trainer.model, loader(16))
        assert callback.seen == 2
    elif isinstance(callback, lightnings.ModelCheckpoint):
        assert callback.best_model_score == pytest.approx(min(row["val/loss"] for row in trainer.history))
    elif isinstance(callback, lightnings.ModelPruning):
        weight: Tensor = trainer.model.backbone.weight
        assert (weight == 0).float().mean() > 0.3
    elif isinstance(callback, lightnings.LearningRateMonitor):
        assert callback.lrs == {"lr-SGD": [0.1] * len(callback.lrs["lr-SGD"])}


@pytest.mark.parametrize("name", REFUSED)
def test_it_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"^{name} trains with one loader and no clients[^\n]*$"):
        federated(tmp_path, getattr(lightnings, name)())


def test_another_epoch_for_batchnorm_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^StochasticWeightAveraging [^\n]*: use EMAWeightAveraging"):
        federated(tmp_path, MADE["StochasticWeightAveraging"](tmp_path), module=Lit())
