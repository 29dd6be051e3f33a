"""Modules, data modules and callbacks of the separate package pytorch_lightning."""

from pathlib import Path
from typing import Any

import pytest
import torch
from harness import NUM_CLASSES, NUM_FEATURES, TinyData, classifier, make_trainer
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import flcog

pytestmark = pytest.mark.slow


def test_a_program_of_the_other_package(tmp_path: Path) -> None:
    pl = pytest.importorskip("pytorch_lightning")

    class Lit(pl.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Linear(NUM_FEATURES, NUM_CLASSES)

        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

        def validation_step(self, batch: Any, batch_idx: int) -> None:
            self.log("val_loss", nn.functional.cross_entropy(self.net(batch[0]), batch[1]))

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    class Rows(pl.LightningDataModule):  # type: ignore[misc, name-defined]
        def _loader(self) -> Any:
            return DataLoader(TensorDataset(torch.randn(40, NUM_FEATURES), torch.arange(40) % NUM_CLASSES), batch_size=4)

        train_dataloader = val_dataloader = _loader

    stopping = pl.callbacks.EarlyStopping("val_loss", stopping_threshold=1e9)
    trainer = make_trainer(tmp_path, stopping, rounds=3, local_steps=1, eval_every=1, precision="32-true")
    trainer.fit(Lit(), Rows())
    assert len(trainer.history) == 1 and "val/loss" in trainer.history[0]


def test_its_loggers_and_profilers(tmp_path: Path) -> None:
    pl = pytest.importorskip("pytorch_lightning")
    logger, profiler = pl.loggers.CSVLogger(str(tmp_path), name="csv"), pl.profilers.SimpleProfiler()
    options: dict[str, Any] = {"logger": logger, "profiler": profiler, "default_root_dir": str(tmp_path)}
    trainer = flcog.FederatedTrainer(rounds=1, local_steps=1, **options)
    trainer.fit(classifier(), TinyData())
    assert trainer.loggers == [logger] and profiler.recorded_durations


OF_A_USER = """
import pytorch_lightning as pl
from torch.utils.data import DataLoader, TensorDataset
import torch
class Counting(pl.Callback):
    pass
class Rows(pl.LightningDataModule):
    def train_dataloader(self):
        return DataLoader(TensorDataset(torch.randn(40, 20), torch.arange(40) % 3), batch_size=4)
"""


def test_its_classes_on_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command_line: None) -> None:
    pytest.importorskip("pytorch_lightning")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "of_a_user.py").write_text(OF_A_USER)
    words = "--trainer.local_steps=1 --trainer.logger=false --trainer.callbacks+=of_a_user.Counting --data=of_a_user.Rows"
    cli = flcog.FederatedCLI(args=[*words.split(), "--model=flcog.models.LeNet"], run=False)
    assert type(cli.datamodule).__name__ == "Rows"
    assert cli.config["trainer"]["callbacks"][0]["class_path"] == "of_a_user.Counting"
