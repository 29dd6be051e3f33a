"""Values that modules log: columns of the row, callback_metrics, and trackers, as Lightning computes them."""

from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import pytest
import torch
import torchmetrics
from harness import SIZES, TinyData, fit, train
from lightning.pytorch.loggers import CSVLogger
from torch import nn

from faithful.modules import Plain
from faithful.side_by_side import Lit, Loaders, by_flcog, by_lightning, loader
from flcog.datamodules import LightningData


class Logs(Lit):
    """Logs in every way that Lightning has."""

    def __init__(self) -> None:
        super().__init__()
        self.accuracy = torchmetrics.Accuracy(task="multiclass", num_classes=3)
        self.seen: list[dict[str, float]] = []

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = super().training_step(batch, batch_idx)
        rows = float(len(batch[1]))
        self.log("train_both", rows * batch_idx, on_step=True, on_epoch=True, prog_bar=True)
        self.log("train_step", float(batch_idx), on_step=True, on_epoch=False)
        return loss

    def on_train_batch_end(self, *args: Any) -> None:
        metrics = self.trainer.callback_metrics
        self.seen.append({name: float(metrics[name]) for name in ("train_both", "train_both_step", "train_step", "train_loss")})
        assert "train_both_step" in self.trainer.progress_bar_metrics
        self.logger.log_metrics({"own": 2.0 * args[-1]}, step=self.global_step)  # type: ignore[union-attr]

    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        rows, outputs = float(len(batch[1])), self.net(batch[0])
        self.accuracy(outputs, batch[1])
        self.log("val_acc", self.accuracy, on_step=False, on_epoch=True)
        self.log("val_loss", nn.functional.cross_entropy(outputs, batch[1]))
        self.log("val_rows", rows, prog_bar=True)
        self.log("val_sum", rows, reduce_fx="sum")
        self.log_dict({"val_max": rows, "val/min": -rows}, reduce_fx=torch.max)
        self.log("val_weighted", float(batch_idx), batch_size=1 if batch_idx else 3)

    def on_validation_epoch_end(self) -> None:
        self.log("val_epoch", 7.0)


def both(root: Path, *sets: Any) -> tuple[Any, Any, Any, Any]:
    """The trainer and the module of either run, with one client in two rounds."""
    data = LightningData(Loaders(loader(), list(sets) if len(sets) > 1 else sets[0]), num_clients=1)
    ours, module, _ = by_flcog(
        root, Logs, data, rounds=2, keep_optimizers=True, log_every_n_steps=1, tracker=CSVLogger(root / "a")
    )
    tracker = CSVLogger(root / "b")
    theirs, same, _ = by_lightning(Logs, loader(), list(sets), max_epochs=2, logger=tracker, log_every_n_steps=1)
    return ours, module, theirs, same


def rows(root: Path, name: str) -> list[float]:
    (file,) = root.rglob("metrics.csv")
    lines = [line.split(",") for line in file.read_text().splitlines()]
    where = lines[0].index(name)
    return [float(line[where]) for line in lines[1:] if line[where]]


def test_one_client_logs_as_lightning(tmp_path: Path) -> None:
    ours, module, theirs, same = both(tmp_path, loader(20))
    assert module.seen == [pytest.approx(each, rel=1e-5) for each in same.seen] and len(same.seen) == 16
    expected = {name: float(value) for name, value in theirs.callback_metrics.items()}
    found = {name: float(value) for name, value in ours.callback_metrics.items()}
    expected |= {"train_loss": found["train/loss"], "train_step": 3.5}  # a round's values are means over its steps
    expected |= dict.fromkeys(("train_both", "train_both_epoch"), (8 * sum(range(7)) + 4 * 7) / 8)
    assert {name: found[name] for name in expected} == pytest.approx(expected, rel=1e-4)
    row = ours.history[-1]
    named = [row[f"val/{name}"] for name in ("sum", "max", "min", "epoch", "weighted")]
    assert named == pytest.approx([20, 8, -4, 7, 0.6])
    assert row["train/both"] == pytest.approx(expected["train_both_epoch"]) and row["train/step"] == 3.5
    for name in ("own", "train_both_step", "train_step"):
        assert rows(tmp_path / "a", name) == rows(tmp_path / "b", name) and len(rows(tmp_path / "a", name)) == 16


def test_several_validation_loaders(tmp_path: Path) -> None:
    ours, _, theirs, _ = both(tmp_path, loader(20), loader(30))
    expected = {name: float(value) for name, value in theirs.callback_metrics.items() if "dataloader_idx" in name}
    found = {name: float(value) for name, value in ours.callback_metrics.items()}
    assert {name: found.get(name) for name in expected} == pytest.approx(expected, rel=1e-4) and len(expected) > 12


class Counts(Plain):
    """Logs numbers that differ from step to step."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.log_dict({"train_step": float(batch_idx), "rows": len(batch[1])})
        if batch_idx == 0:
            self.log("first", 1.0)
        return super().training_step(batch, batch_idx)


class CountsFaithfully(Counts):
    """Logs in a hook, and a metric, which begins anew with each client."""

    def __init__(self) -> None:
        super().__init__()
        self.largest = torchmetrics.MaxMetric()

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.largest(float(batch_idx))
        self.log("largest", self.largest, on_step=False, on_epoch=True)
        return super().training_step(batch, batch_idx)

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.log("hook", 10.0 * batch_idx)


@pytest.mark.parametrize("kind", [Counts, CountsFaithfully])
def test_columns_are_means_of_clients_weighted_as_the_loss(kind: Any) -> None:
    trainer = train(module=kind(), clients_per_round=8, rounds=1, local_epochs=2)
    assert (trainer.executor.name == "lightning") == (kind is CountsFaithfully)
    sizes, row = np.array(SIZES), trainer.rows[0]
    steps, weights = 2 * -(-sizes // 4), sizes / sizes.sum()
    assert row["train/step"] == pytest.approx(float((weights * (steps - 1) / 2).sum()))
    assert row["train/rows"] == pytest.approx(float((weights * 2 * sizes / steps).sum()))
    assert row["train/first"] == 1
    if kind is CountsFaithfully:
        assert row["train/hook"] == pytest.approx(10 * row["train/step"])
        assert row["train/largest"] == pytest.approx(float((weights * (steps - 1)).sum()))


class Stepwise(L.Callback):
    """What callbacks see: global_step while clients train and between rounds."""

    def __init__(self) -> None:
        self.inside: list[int] = []
        self.between: list[tuple[str, int, int]] = []

    def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, batch_idx: int) -> None:
        assert module.global_step == trainer.global_step
        self.inside.append(trainer.global_step)

    def on_train_epoch_start(self, trainer: Any, module: Any) -> None:
        self.between.append(("start", trainer.current_epoch, trainer.global_step))

    def on_validation_end(self, trainer: Any, module: Any) -> None:
        self.between.append(("validation", trainer.current_epoch, trainer.global_step))

    def on_train_epoch_end(self, trainer: Any, module: Any) -> None:
        self.between.append(("end", trainer.current_epoch, trainer.global_step))


def test_global_step_is_the_clients_own_and_the_runs_total_between_rounds(tmp_path: Path) -> None:
    watch = Stepwise()
    fit(tmp_path, watch, module=Plain(), data=TinyData(order=(0, 1)), clients_per_round=2, rounds=2, local_steps=3, eval_every=1)  # type: ignore[arg-type]
    assert watch.inside == [0, 1, 2, 0, 1, 2, 3, 4, 5, 3, 4, 5]
    assert [each for each in watch.between if each[0] != "validation"] == [
        *(("start", 0, 0), ("end", 0, 6), ("start", 1, 6), ("end", 1, 12))
    ]
    assert {each for each in watch.between if each[0] == "validation"} <= {("validation", 0, 6), ("validation", 1, 12)}
