"""LightningModules as users write them, and callbacks that record what they see."""

from typing import Any

import lightning as L
import torch
import torch.nn.functional as F
from harness import NUM_CLASSES, NUM_FEATURES
from torch import Tensor, nn

from flcog.lightning.contract import OF_A_BATCH, OF_A_MODULE, OF_A_STEP
from flcog.models import MLP


class Plain(L.LightningModule):
    """A module that either contract can train."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = MLP(NUM_FEATURES, (8,), NUM_CLASSES)

    def forward(self, inputs: Tensor) -> Any:
        return self.net(inputs)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return F.cross_entropy(self(batch[0]), batch[1])

    def test_step(self, batch: Any, batch_idx: int) -> Any:
        self.log("accuracy", (self(batch[0]).argmax(1) == batch[1]).float().mean())

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Lit(Plain):
    """A module with a scheduler that changes the learning rate after every step."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return {"loss": super().training_step(batch, batch_idx), "rows": len(batch[1])}

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
    """A module that records the calls of its hooks of steps."""

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
