"""The faithful step is Lightning's training loop: the same hooks in the same order, and the same numbers."""

import warnings
from typing import Any

import lightning as L
import pytest
import torch
import torch.nn.functional as F
from harness import NUM_CLASSES, NUM_FEATURES, RecordingTrainer, assert_close, train
from torch import nn
from torch.utils.data import DataLoader

from flcog.batch_hooks import OF_A_BATCH
from flcog.client.lightning_hooks import OF_A_MODULE, OF_A_STEP
from flcog.execute.faithful_client import FaithfulClient
from flcog.models import MLP

ONE_CLIENT: dict[str, Any] = {"clients_per_round": 1, "rounds": 1, "local_steps": 5}


class Lit(L.LightningModule):
    """A user's module with a scheduler that changes the learning rate after every step."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = MLP(NUM_FEATURES, (8,), NUM_CLASSES)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return {"loss": F.cross_entropy(self.net(batch[0]), batch[1]), "rows": len(batch[1])}

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.3, momentum=0.9, weight_decay=1e-2)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


class Gan(L.LightningModule):
    """Two networks, each trained by its own optimiser, in turn."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.automatic_optimization = False
        self.generator, self.critic = nn.Linear(2, NUM_FEATURES), nn.Linear(NUM_FEATURES, 1)

    def training_step(self, batch: Any, batch_idx: int) -> None:
        first, second = self.optimizers()  # type: ignore[misc,attr-defined]
        noise = batch[0][:, :2]
        with self.toggled_optimizer(first):
            first.zero_grad()
            self.manual_backward(-self.critic(self.generator(noise)).mean())
            first.step()
        self.toggle_optimizer(second)
        second.zero_grad()
        self.manual_backward(self.critic(self.generator(noise)).mean() - self.critic(batch[0]).square().mean().neg())
        self.clip_gradients(second, 0.5, "norm")
        second.step()
        self.untoggle_optimizer(second)
        for schedule in self.lr_schedulers():  # type: ignore[union-attr]
            schedule.step()  # type: ignore[call-arg]

    def configure_optimizers(self) -> Any:
        first = torch.optim.Adam(self.generator.parameters(), lr=0.05)
        second = torch.optim.SGD(self.critic.parameters(), lr=0.1, momentum=0.5)
        return [first, second], [torch.optim.lr_scheduler.ExponentialLR(each, 0.9) for each in (first, second)]


def recording(kind: type[L.LightningModule], calls: list[str]) -> L.LightningModule:
    """Make a module that records the calls of its hooks of steps."""

    def noted(name: str) -> Any:
        def hook(self: Any, *args: Any, **kwargs: Any) -> Any:
            calls.append(name)
            return getattr(super(cls, self), name)(*args, **kwargs)

        return hook

    def step(self: Any, batch: Any, batch_idx: int) -> Any:
        calls.append(f"training_step {self.current_epoch} {self.global_step} {batch_idx}")
        return super(cls, self).training_step(batch, batch_idx)  # type: ignore[misc]

    hooks = {name: noted(name) for name in (*OF_A_MODULE, *OF_A_BATCH, "lr_scheduler_step")}
    cls = type("Noting", (kind,), hooks | {"training_step": step})
    return cls()


class Notes(L.Callback):
    """A callback that records the calls of its hooks of steps."""

    def __init__(self, calls: list[str]) -> None:
        self.calls = calls


for _name in OF_A_STEP:

    def _hook(self: Notes, *args: Any, name: str = _name) -> None:
        assert args[1].trainer is args[0] and args[0].optimizers
        self.calls.append(f"callback {name}")

    setattr(Notes, _name, _hook)


def by_lightning(module: L.LightningModule, ours: RecordingTrainer, *callbacks: L.Callback, **options: Any) -> L.LightningModule:
    """Train the module with ``lightning.Trainer`` on the batches of the only client, and return it."""
    batches = [batch for clients in ours.recorded for _, _, batches in clients for batch in batches]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = L.Trainer(
            **{"max_epochs": 1, "accelerator": "cpu", "logger": False, "precision": "64-true", "barebones": False} | options,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            callbacks=list(callbacks),
        )
        trainer.fit(module, DataLoader(batches, batch_size=None))
    return module


@pytest.mark.parametrize("kind", [Lit, Gan])
def test_hooks_and_numbers_are_lightnings(kind: type[L.LightningModule]) -> None:
    calls: list[str] = []
    ours = train(Notes(calls), module=recording(kind, calls), **ONE_CLIENT)
    assert isinstance(ours.executor.placement.trainer, FaithfulClient)
    theirs: list[str] = []
    module = by_lightning(recording(kind, theirs), ours, Notes(theirs))
    assert calls == theirs and len(set(calls)) > 15
    assert_close(ours.params, {name: p.detach() for name, p in module.named_parameters()}, 1e-12)
