"""Programs that people write for Lightning train as they are."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from harness import assert_close, distance, make_trainer
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

from faithful.side_by_side import Lit, Loaders, by_flcog, by_lightning, loader, points
from flcog.datamodules import LightningData


class WarmUp(Lit):
    """A learning rate by the number of steps."""

    def optimizer_step(self, epoch: int, batch_idx: int, optimizer: Any, optimizer_closure: Any = None) -> None:
        optimizer.step(closure=optimizer_closure)
        for group in optimizer.param_groups:
            group["lr"] = 0.1 * min(1.0, self.trainer.global_step / 20)


class Anneals(Lit):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return super().training_step(batch, batch_idx) * (1 + self.global_step / self.trainer.estimated_stepping_batches)


class OneCycle(Lit):
    """A schedule over the whole run, of the learning rate and of the momentum."""

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)
        steps = int(self.trainer.estimated_stepping_batches)
        return [optimizer], [{"scheduler": torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, steps), "interval": "step"}]


class Late(Lit):
    """Returns None, at first in the second epoch."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return None if self.current_epoch == 1 and batch_idx == 2 else super().training_step(batch, batch_idx)


class Thaws(Lit):
    def on_train_epoch_start(self) -> None:
        self.net[0].requires_grad_(self.current_epoch != 1)


class Asks(Lit):
    """Asks its trainer for much."""

    def setup(self, stage: str) -> None:
        assert self.trainer.strategy.root_device.type == "cpu" and self.trainer.world_size == 1

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        assert self.trainer.log_every_n_steps == 50 and self.trainer.strategy.barrier() is None
        assert self.trainer.num_training_batches == 8 and self.trainer.is_last_batch == (batch_idx == 7)
        loss: Any = super().training_step(batch, batch_idx)
        return loss + 0 * self.all_gather(loss.detach()).mean()


class Threshold(Lit):
    """A threshold of post-processing, which has no value at first."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("threshold", torch.tensor(torch.nan))
        self.register_buffer("lowest", torch.full((3,), torch.inf))


class NoOptimizer(Lit):
    """Trains nothing."""

    def configure_optimizers(self) -> None:
        return None

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.net(batch[0])


class PureUnused(Lit):
    """A layer without a gradient and weight decay, and no hook."""

    on_train_batch_start = L.LightningModule.on_train_batch_start

    def __init__(self) -> None:
        super().__init__()
        self.unused = nn.Linear(2, 2)

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1, weight_decay=0.5)


@pytest.mark.parametrize("kind", [WarmUp, Anneals, OneCycle, Late, Thaws, Asks, Threshold, NoOptimizer, PureUnused])
def test_three_rounds_of_one_client_are_three_epochs(kind: type[Lit], tmp_path: Path) -> None:
    """The weights differ by the rounding of the change that a client sends."""
    data = LightningData(Loaders(loader(), loader(16)), num_clients=1)
    trainer, module, _ = by_flcog(tmp_path, kind, data, rounds=3, keep_optimizers=True)
    _, same, _ = by_lightning(kind, loader(), loader(16), max_epochs=3)
    assert trainer.executor.name == "lightning" and len(trainer.history) == 3
    ours, theirs = ({n: v.nan_to_num(9.0, 9.0) for n, v in each.state_dict().items()} for each in (module, same))
    assert_close(ours, theirs, 2e-5)
    assert kind is NoOptimizer or distance(theirs, {n: v.nan_to_num(9.0, 9.0) for n, v in kind().state_dict().items()}) > 1e-2


class Stream(IterableDataset):
    def __iter__(self) -> Iterator[Any]:
        return iter(points(20))


class Data(L.LightningDataModule):
    """Has no test set, and says so by None; its validation set is a stream."""

    def __init__(self) -> None:
        super().__init__()
        self.test_dataloader = None  # type: ignore[assignment,method-assign]

    def train_dataloader(self) -> Any:
        return DataLoader(points(40), batch_size=8, shuffle=True)

    def val_dataloader(self) -> Any:
        return DataLoader(Stream(), batch_size=8)


def test_a_data_module_without_a_test_set(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, clients_per_round=4, rounds=1, local_epochs=1, eval_every=1, precision="32-true")
    trainer.fit(module := Lit(), Data())
    inputs, targets = points(20).tensors
    with torch.no_grad():
        expected = nn.functional.cross_entropy(module.eval().net(inputs), targets)
    assert trainer.history[0]["val/loss"] == pytest.approx(float(expected), rel=1e-5)


def test_max_epochs_are_rounds(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, rounds=9, max_epochs=2, check_val_every_n_epoch=2, local_epochs=1, precision="32-true")
    trainer.fit(Lit(), Data())
    assert len(trainer.history) == 2 and [("val/loss" in row) for row in trainer.history] == [False, True]
