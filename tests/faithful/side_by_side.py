"""One client in one round by flcog, and the same batches by ``lightning.Trainer``."""

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import lightning as L
import torch
from harness import RecordingTrainer, make_trainer
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import flcog
from flcog.core.global_streams import seed_streams
from flcog.core.randomness import fold
from flcog.method import ClientUpload, Messages, Params

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

QUIET: dict[str, Any] = {
    "accelerator": "cpu",
    "devices": 1,
    "logger": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "enable_checkpointing": False,
    "num_sanity_val_steps": 0,
}


def points(count: int = 60, seed: int = 0) -> TensorDataset:
    """Points in three classes."""
    rng = torch.Generator().manual_seed(seed)
    labels = torch.randint(3, (count,), generator=rng)
    return TensorDataset(torch.randn(count, 6, generator=rng) + labels[:, None], labels)


def loader(count: int = 60, **options: Any) -> DataLoader:
    return DataLoader(points(count), **{"batch_size": 8, **options})


class Loaders(L.LightningDataModule):
    """Given loaders."""

    def __init__(self, train: Any, val: Any = ()) -> None:
        super().__init__()
        self.train, self.val = train, val

    def train_dataloader(self) -> Any:
        return self.train

    def val_dataloader(self) -> Any:
        return self.val


class Lit(L.LightningModule):
    """A classifier with BatchNorm and Dropout, and a hook for which it trains in Lightning's loops."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 3))
        self.batches: list[Any] = []

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = nn.functional.cross_entropy(self.net(batch[0]), batch[1])
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val_loss", nn.functional.cross_entropy(self.net(batch[0]), batch[1]))

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        self.batches.append(batch)


class Uploads(flcog.Method):
    """Keeps the change that each client sends."""

    individual_uploads = True
    seen: ClassVar[list[ClientUpload]] = []

    def server_step(self, state: Any, params: Params, delta: Params, messages: Messages, cohort: Any) -> Any:
        self.seen[:] = messages.individual
        return delta, state


class Seeded(L.Callback):
    """Begins each epoch with the global streams that flcog's first client has in the round."""

    def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, batch_idx: int) -> None:
        if batch_idx == 0:
            seed_streams(fold(0, trainer.current_epoch, 0, "torch") >> 1)


ONE_CLIENT: dict[str, Any] = {"clients_per_round": 1, "rounds": 1, "local_steps": 5}


def on_its_batches(module: L.LightningModule, ours: RecordingTrainer, *callbacks: L.Callback, **options: Any) -> Any:
    """Train a module with ``lightning.Trainer`` on the batches of a run's only client, and return it."""
    batches = [batch for clients in ours.recorded for _, _, batches in clients for batch in batches]
    trainer = L.Trainer(**QUIET | {"max_epochs": 1, "precision": "64-true", "callbacks": list(callbacks)} | options)
    trainer.fit(module, DataLoader(batches, batch_size=None))
    return module


def made(make: Callable[[], L.LightningModule]) -> L.LightningModule:
    torch.manual_seed(0)
    return make()


def by_flcog(
    root: Path,
    make: Callable[[], L.LightningModule],
    *data: Any,
    callbacks: Sequence[Any] = (),
    tracker: Any = False,
    **options: Any,
) -> Any:
    """The trained module, and the change of its tensors that the client has sent."""
    module, uploads = made(make), Uploads()
    given = {"rounds": 1, "clients_per_round": 1, "local_epochs": 1, "executor": "auto", "eval_every": 1, "precision": "32-true"}
    trainer = make_trainer(root, uploads, *callbacks, **given | options)
    trainer.logger = tracker
    trainer.fit(module, *data)
    (upload,) = uploads.seen
    return trainer, module, upload.delta | upload.buffers


def by_lightning(make: Callable[[], L.LightningModule], *data: Any, callbacks: Sequence[Any] = (), **options: Any) -> Any:
    """The trained module, and the change of its parameters and its buffers."""
    module = made(make)
    trainer = L.Trainer(**QUIET | {"max_epochs": 1, "callbacks": [Seeded(), *callbacks]} | options)
    dtype = torch.get_default_dtype()
    before = {}

    class Start(L.Callback):
        def on_train_start(self, trainer: Any, module: Any) -> None:
            before.update({name: value.detach().clone() for name, value in module.named_parameters()})

    trainer.callbacks.append(Start())
    trainer.fit(module, *data)
    changes = {name: value.detach() - before[name] for name, value in module.named_parameters()}
    assert torch.get_default_dtype() == dtype
    return trainer, module, changes | {name: value for name, value in module.named_buffers() if name in module.state_dict()}
