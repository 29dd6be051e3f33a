"""Several loaders of a validation or test set, in agreement with ``lightning.Trainer``."""

import json
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from harness import make_trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset
from torchmetrics.classification import MulticlassAccuracy
from two_processes import on_one_and_two_processes

import flcog

DRAWN = torch.Generator().manual_seed(0)
SIZES = (13, 8, 21)
SETS = [TensorDataset(torch.randn(size, 6, generator=DRAWN), torch.randint(3, (size,), generator=DRAWN)) for size in (30, *SIZES)]


def loaders(*datasets: Dataset, batch_size: int = 5) -> list[DataLoader]:
    return [DataLoader(dataset, batch_size=batch_size) for dataset in datasets]


class Several(L.LightningDataModule):
    """A training loader, and several loaders to validate and to test on."""

    def train_dataloader(self) -> Any:
        return DataLoader(SETS[0], batch_size=10)

    def val_dataloader(self) -> Any:
        return loaders(*SETS[1:])

    def test_dataloader(self) -> Any:
        return loaders(*SETS[2:])


class Scores(L.LightningModule):
    """Logs figures of each loader, of all of them, and of metrics, and records the arguments of its hooks."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(6, 3)
        self.accuracies = torch.nn.ModuleList(MulticlassAccuracy(3, average="micro") for _ in SIZES)
        self.called: list[tuple[Any, ...]] = []

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(self.layer(batch[0]), batch[1])

    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> torch.Tensor:
        self.called.append(("step", batch_idx, dataloader_idx, len(batch[0])))
        outputs = self.layer(batch[0])
        loss = torch.nn.functional.cross_entropy(outputs, batch[1])
        self.log("val_loss", loss)
        self.log("val_largest", outputs.max(), reduce_fx="max", on_step=True, on_epoch=True)
        self.log(f"val_own_{dataloader_idx}", outputs.mean(), add_dataloader_idx=False)
        self.accuracies[dataloader_idx](outputs, batch[1])
        self.log("val_acc", self.accuracies[dataloader_idx])
        return loss

    def test_step(self, batch: Any, batch_idx: int, dataloader_idx: int) -> None:
        self.log("test_loss", torch.nn.functional.cross_entropy(self.layer(batch[0]), batch[1]))

    def on_validation_batch_start(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        self.called.append(("start", batch_idx, dataloader_idx))

    def on_validation_batch_end(self, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        self.called.append(("end", batch_idx, dataloader_idx))

    def on_before_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        if not self.trainer.training:
            self.called.append(("transfer", dataloader_idx))
        return batch

    def on_validation_epoch_end(self) -> None:
        self.log("val_gap", 0.5)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.1)


class Recorder(L.Callback):
    def __init__(self) -> None:
        self.called: list[tuple[Any, ...]] = []

    def on_validation_batch_start(self, trainer: Any, module: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        self.called.append((batch_idx, dataloader_idx))


def scores() -> Scores:
    torch.manual_seed(1)
    return Scores()


def lightning(recorder: Recorder, **options: Any) -> L.Trainer:
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}
    return L.Trainer(accelerator="cpu", max_epochs=1, callbacks=[recorder], **quiet, **options)


@pytest.mark.parametrize("options", [{}, {"limit_val_batches": 2, "limit_test_batches": 1}], ids=["all batches", "some batches"])
def test_figures_hooks_and_names_are_lightnings(options: dict[str, Any]) -> None:
    ours, theirs, recorders = scores(), scores(), (Recorder(), Recorder())
    trainer, judge = make_trainer(None, recorders[0], **options), lightning(recorders[1], **options)
    for verb in ("validate", "test"):
        found, expected = getattr(trainer, verb)(ours, Several()), getattr(judge, verb)(theirs, Several(), verbose=False)
        for place, figures in enumerate(expected):
            assert {name: found[place][name.replace("_epoch", "")] for name in figures} == pytest.approx(figures, rel=1e-6), verb
        assert trainer.callback_metrics.keys() >= {name for name in judge.callback_metrics if "_step" not in name}
    transfers = [[call for call in each.called if call[0] == "transfer"] for each in (ours, theirs)]
    rest = [[call for call in each.called if call[0] != "transfer"] for each in (ours, theirs)]
    assert rest[0] == rest[1] and sorted(transfers[0]) == sorted(transfers[1])
    assert recorders[0].called == recorders[1].called != []


def test_fit_has_a_column_for_each_loader(tmp_path: Path) -> None:
    model = scores()
    best = ModelCheckpoint(dirpath=tmp_path, filename="best", monitor="val_acc/dataloader_idx_1", mode="max")
    chosen = flcog.callbacks.Checkpoint(monitor="val/acc/dataloader_idx_1")
    trainer = make_trainer(tmp_path, chosen, best, rounds=2, eval_every=1, precision="32-true")
    trainer.fit(model, Several())
    row, judge = trainer.history[-1], lightning(Recorder())
    for place, figures in enumerate(judge.validate(model, loaders(*SETS[1:]), verbose=False)):
        assert row[f"val/loss/dataloader_idx_{place}"] == pytest.approx(figures[f"val_loss/dataloader_idx_{place}"], rel=1e-6)
        assert row[f"val/acc/dataloader_idx_{place}"] == pytest.approx(figures[f"val_acc/dataloader_idx_{place}"], rel=1e-6)
    assert row["val/gap"] == 0.5 and trainer.num_val_batches == [3, 2, 5] and trainer.num_test_batches == [2, 5]
    assert best.best_model_score == max(row["val/acc/dataloader_idx_1"] for row in trainer.history)
    assert (trainer.run_dir / "checkpoints/best.ckpt").is_file()  # type: ignore[operator]


def test_a_classifier_has_figures_of_all_samples_and_of_each_loader() -> None:
    torch.manual_seed(0)
    model = flcog.Classifier(torch.nn.Linear(6, 3))
    together = make_trainer(None).test(model, DataLoader(torch.utils.data.ConcatDataset(SETS[1:]), batch_size=64))
    found = make_trainer(None).test(model, dataloaders=dict(zip("abc", loaders(*SETS[1:]), strict=True)))
    assert {name: found[name] for name in together} == pytest.approx(together, rel=1e-6)
    for place, part in enumerate(SETS[1:]):
        alone = make_trainer(None).test(model, DataLoader(part, batch_size=64))
        assert {name: found[f"{name}/dataloader_idx_{place}"] for name in alone} == pytest.approx(alone, rel=1e-6)


def evaluations(end: str, devices: int) -> None:
    """Validates on three sets, one of which has a single sample and leaves the second process without any."""
    trainer = flcog.FederatedTrainer(
        1, local_steps=1, accelerator="cpu", devices=devices, logger=False, default_root_dir=str(Path(end).parent)
    )
    sets = loaders(SETS[1], Subset(SETS[2], [3]), SETS[3])
    torch.manual_seed(0)
    found = [trainer.validate(scores(), sets), trainer.validate(flcog.Classifier(torch.nn.Linear(6, 3)), sets)]
    if trainer.is_global_zero:
        Path(end).write_text(json.dumps(found))


@pytest.mark.slow
def test_two_processes_have_the_figures_of_one(tmp_path: Path) -> None:
    one, two = on_one_and_two_processes(evaluations, tmp_path)
    assert "val/acc/dataloader_idx_1" in one[0] and "val/accuracy/dataloader_idx_1" in one[1]
    assert [part == pytest.approx(other, rel=1e-6) for part, other in zip(one, two, strict=True)] == [True, True]
