"""The faithful step, dict batches, logged values and Lightning's callbacks give the same numbers on two processes as on one."""

import json
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
import torch.nn.functional as F
from harness import without_times
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from torchmetrics import MeanMetric
from two_processes import on_one_and_two_processes

import flcog
from flcog.datamodules import LightningData


class Dicts(Dataset):
    """Items with a text of several lengths."""

    def __len__(self) -> int:
        return 90

    def __getitem__(self, index: int) -> dict[str, Any]:
        values = torch.randn(6, generator=torch.Generator().manual_seed(index))
        return {"values": values, "label": int(values[:3].argmax()), "words": ["a"] * (index % 3 + 1)}


def joined(items: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "values": torch.stack([item["values"] for item in items]),
        "label": torch.tensor([item["label"] for item in items]),
        "words": [item["words"] for item in items],
    }


class Data(L.LightningDataModule):
    def train_dataloader(self) -> Any:
        return DataLoader(Dicts(), batch_size=8, collate_fn=joined)

    val_dataloader = train_dataloader

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        return {**batch, "count": torch.tensor([float(len(words)) for words in batch["words"]])}


class Lit(L.LightningModule):
    """A module with batch hooks, dict batches, logged values and a scheduler that acts after each step."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net, self.seen = nn.Sequential(nn.Linear(7, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)), MeanMetric()

    def loss(self, batch: Any) -> Tensor:
        return F.cross_entropy(self.net(torch.cat([batch["values"], batch["count"][:, None]], 1)), batch["label"])

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = self.loss(batch)
        self.seen(batch["count"])
        self.log_dict({"train_words": batch["count"].mean(), "train_seen": self.seen, "train_step": float(self.global_step)})
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val_loss", self.loss(batch))

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.log("train_end", outputs["loss"] * batch_idx)

    def on_train_epoch_end(self) -> None:
        self.log("weights", next(self.parameters()).square().sum())

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.3, momentum=0.9)
        cycle = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.3, total_steps=int(self.trainer.estimated_stepping_batches))
        return [optimizer], [{"scheduler": cycle, "interval": "step"}]


def rounds(end: str, devices: int) -> None:
    """Trains some rounds, and writes their rows, the name of the best checkpoint and its evaluation."""
    best = ModelCheckpoint(monitor="val_loss")
    trainer = flcog.FederatedTrainer(
        rounds=4,
        local_epochs=1,
        clients_per_round=4,
        precision="64-true",
        accelerator="cpu",
        devices=devices,
        logger=False,
        callbacks=[flcog.callbacks.SCAFFOLD(), best, EarlyStopping("val_loss", patience=1, min_delta=0.01)],
        default_root_dir=str(Path(end).parent / f"runs{devices}"),
    )
    trainer.fit(Lit(), LightningData(Data(), num_clients=5, target="label"))
    rows = list(without_times(trainer.history))
    tested = trainer.validate(ckpt_path="best")
    if trainer.is_global_zero:
        Path(end).write_text(json.dumps([rows, Path(best.best_model_path).name, tested]))


@pytest.mark.slow
def test_two_processes_have_the_numbers_of_one(tmp_path: Path) -> None:
    one, two = on_one_and_two_processes(rounds, tmp_path)
    assert len(one[0]) > 1 and {"train/words", "train/seen", "train/step", "train/end", "weights", "val/loss"} < one[0][0].keys()
    assert two[1] == one[1] and two[2] == pytest.approx(one[2], rel=1e-6)
    for ours, theirs in zip(two[0], one[0], strict=True):
        assert ours == pytest.approx(theirs, rel=1e-6)
