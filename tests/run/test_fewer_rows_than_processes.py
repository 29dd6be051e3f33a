"""A module's own steps evaluate a set that has fewer rows than the run has processes."""

import json
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics import MeanMetric
from two_processes import on_one_and_two_processes

import flcog
from flcog.datamodules import LightningData


class Data(L.LightningDataModule):
    def train_dataloader(self) -> Any:
        inputs = torch.randn(20, 3, generator=torch.Generator().manual_seed(0))
        return DataLoader(TensorDataset(inputs, (inputs.sum(1) > 0).long()), batch_size=4)

    def val_dataloader(self) -> Any:
        return DataLoader(TensorDataset(torch.ones(1, 3), torch.ones(1, dtype=torch.long)), batch_size=4)


class Lit(L.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net, self.seen = nn.Linear(3, 2), MeanMetric()

    def training_step(self, batch: Any) -> Any:
        return F.cross_entropy(self.net(batch[0]), batch[1])

    def validation_step(self, batch: Any) -> None:
        self.seen(batch[0].mean())
        self.log_dict({"val_seen": self.seen, "val_loss": F.cross_entropy(self.net(batch[0]), batch[1])})

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def figures(end: str, root: str, devices: int) -> None:
    torch.set_num_threads(1)
    options: dict[str, Any] = {"accelerator": "cpu", "devices": devices, "logger": False, "precision": "64-true"}
    trainer = flcog.FederatedTrainer(rounds=2, local_steps=1, default_root_dir=f"{root}/{devices}", **options)
    trainer.fit(Lit(), LightningData(Data(), num_clients=2))
    if trainer.is_global_zero:
        Path(end).write_text(json.dumps([{name: row[name] for name in ("val/loss", "val/seen")} for row in trainer.history]))


@pytest.mark.slow
def test_a_process_without_rows_waits_for_nobody(tmp_path: Path) -> None:
    one, two = on_one_and_two_processes(figures, tmp_path, str(tmp_path))
    assert one[0]["val/seen"] == 1 and two == [pytest.approx(row, rel=1e-9) for row in one]
