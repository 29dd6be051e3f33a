"""Modules, data modules and callbacks of the separate package pytorch_lightning."""

from pathlib import Path
from typing import Any

import pytest
import torch
from harness import NUM_CLASSES, NUM_FEATURES, make_trainer
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

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
