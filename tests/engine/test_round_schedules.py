"""Schedulers of ``configure_optimizers`` set the clients' learning rates by round."""

from pathlib import Path
from typing import Any

import pytest
import torch
from datamodules.common import one_line
from harness import TinyData, classifier, fit, make_trainer, train

import flcog
from engine.test_faithful_step import Gan, Lit

SCHEDULERS: dict[str, Any] = {
    "StepLR": lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5),
    "LinearLR": lambda optimizer: torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=3),
    "SequentialLR": lambda optimizer: torch.optim.lr_scheduler.SequentialLR(
        optimizer,
        [torch.optim.lr_scheduler.ConstantLR(optimizer, 0.5, 2), torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.7)],
        [2],
    ),
}


class Scheduled(Lit):
    """A module for the pure step, with a scheduler that advances by rounds."""

    def __init__(self, make: Any, **settings: Any) -> None:
        super().__init__()
        self._make, self._settings = make, settings

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD([{"params": self.net.parameters()}], lr=0.4)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": self._make(optimizer)} | self._settings}


def rates(trainer: Any) -> list[float]:
    """The learning rate that clients received in each round."""
    return [assignment.rates[0] for assignment in trainer.recorder.assignments]


def in_torch(make: Any, epochs: int, frequency: int = 1) -> list[float]:
    """The learning rate of each epoch in plain torch."""
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.4)
    scheduler, found = make(optimizer), []
    for epoch in range(epochs):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        if (epoch + 1) % frequency == 0:
            scheduler.step()
    return found


@pytest.mark.parametrize("cycles", [True, False])
def test_momentum_that_a_scheduler_of_epochs_changes_is_warned_of(cycles: bool, recwarn: pytest.WarningsRecorder) -> None:
    def make(optimizer: Any) -> Any:
        optimizer.param_groups[0]["momentum"] = 0.9
        return torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.4, total_steps=9, cycle_momentum=cycles)

    train(module=Scheduled(make), rounds=3, local_steps=1)  # type: ignore[arg-type]
    said = [str(each.message) for each in recwarn if "cycle_momentum" in str(each.message)]
    assert len(said) == cycles and all("changes momentum" in each and "\n" not in each for each in said)


@pytest.mark.parametrize("name", SCHEDULERS)
def test_a_scheduler_of_epochs_advances_once_per_round(name: str) -> None:
    trainer = train(module=Scheduled(SCHEDULERS[name]), rounds=5, local_steps=1)  # type: ignore[arg-type]
    assert rates(trainer) == in_torch(SCHEDULERS[name], 5) and len(set(rates(trainer))) > 2
    assert trainer.executor.placement.trainer.__class__.__name__ == "OneClient"
    seldom = train(module=Scheduled(SCHEDULERS[name], frequency=2), rounds=5, local_steps=1)  # type: ignore[arg-type]
    assert rates(seldom) == in_torch(SCHEDULERS[name], 5, frequency=2)


PLATEAU = lambda optimizer: torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0)  # noqa: E731


def test_a_scheduler_may_follow_a_column(tmp_path: Path) -> None:
    """The column never changes, so every evaluation after the first halves the rate."""
    options: dict[str, Any] = {"rounds": 6, "local_steps": 1, "eval_every": 2}
    trainer = fit(tmp_path, module=Followed(), **options)  # type: ignore[arg-type]
    assert rates(trainer) == [0.4, 0.4, 0.4, 0.4, 0.2, 0.2]


class Followed(Scheduled):
    """A module whose scheduler follows the value that its test step logs."""

    def __init__(self, monitor: str = "test_accuracy", **settings: Any) -> None:
        super().__init__(PLATEAU, monitor=monitor, **settings)

    def test_step(self, batch: Any, batch_idx: int) -> None:
        self.log("test_accuracy", 1.0)


@pytest.mark.parametrize("kind", [Followed, lambda: Scheduled(SCHEDULERS["SequentialLR"])])
def test_a_resumed_run_goes_on_with_the_same_rates(kind: Any, tmp_path: Path) -> None:
    options: dict[str, Any] = {"local_steps": 1, "eval_every": 1}
    whole = fit(tmp_path, module=kind(), rounds=5, **options)
    half = fit(tmp_path, module=kind(), rounds=3, **options)
    resumed = fit(tmp_path, module=kind(), rounds=5, ckpt_path=str(half.run_dir), **options)
    assert rates(half) + rates(resumed) == rates(whole) and len(set(rates(whole))) > 2
    assert all(torch.equal(resumed.params[name], value) for name, value in whole.params.items())


class ByHand(Gan):
    """Advances its schedulers at the end of a round, as in Lightning's documentation."""

    def training_step(self, batch: Any, batch_idx: int) -> None:
        first, second = self.optimizers()  # type: ignore[misc,attr-defined]
        for optimizer in (first, second):
            optimizer.zero_grad()
            self.manual_backward(self.critic(self.generator(batch[0][:, :2])).square().mean())
            optimizer.step()

    def configure_optimizers(self) -> Any:
        optimizers, _ = super().configure_optimizers()
        return optimizers, [torch.optim.lr_scheduler.StepLR(each, 2, 0.5) for each in optimizers]

    def on_train_epoch_end(self) -> None:
        for schedule in self.lr_schedulers():  # type: ignore[union-attr]
            schedule.step()  # type: ignore[call-arg]


def test_a_module_with_manual_optimisation_advances_its_schedulers_itself(tmp_path: Path) -> None:
    whole = fit(tmp_path, module=ByHand(), rounds=3, local_steps=1)  # type: ignore[arg-type]
    found = [list(assignment.rates) for assignment in whole.recorder.assignments]
    assert found == [[0.05, 0.1], [0.05, 0.1], [0.025, 0.05]]
    half = fit(tmp_path, module=ByHand(), rounds=2, local_steps=1)  # type: ignore[arg-type]
    resumed = fit(tmp_path, module=ByHand(), rounds=3, local_steps=1, ckpt_path=str(half.run_dir))  # type: ignore[arg-type]
    assert all(torch.equal(resumed.params[name], value) for name, value in whole.params.items())


class Both(flcog.Classifier):
    """Has schedules of rounds and of steps, and notes the rate of each step."""

    def __init__(self, of_rounds: Any, of_steps: Any, **options: Any) -> None:
        super().__init__(classifier().model, **options)
        self.of_rounds, self.of_steps, self.seen = of_rounds, of_steps, list[float]()

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.4)
        schedulers = [] if self.of_rounds is None else [self.of_rounds(optimizer)]
        of_steps = torch.optim.lr_scheduler.LambdaLR(optimizer, self.of_steps)
        return [optimizer], [*schedulers, {"scheduler": of_steps, "interval": "step"}]

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        self.seen.append(optimizer.param_groups[0]["lr"])


@pytest.mark.parametrize("of_rounds", [None, lambda optimizer: torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)])
@pytest.mark.parametrize("first", [0.0, 0.25])
def test_schedules_of_rounds_and_of_steps_multiply(of_rounds: Any, first: float) -> None:
    schedule = flcog.schedules.Exponential(0.5) if of_rounds is None else None
    module = Both(of_rounds, lambda step: max(first, step / 2), lr_schedule=schedule)
    train(module=module, rounds=3, clients_per_round=2, local_steps=3)
    expected = [0.4 * 0.5**round * max(first, step / 2) for round in range(3) for _ in range(2) for step in range(3)]
    assert module.seen == pytest.approx(expected, abs=1e-15)


def test_bad_schedulers(tmp_path: Path) -> None:
    with one_line(
        ValueError, "ReduceLROnPlateau follows 'val_los', which is no column of this run: choose one of .*test/accuracy"
    ):
        fit(tmp_path, module=Followed("val_los"), rounds=2, local_steps=1, eval_every=1)  # type: ignore[arg-type]
    with pytest.warns(UserWarning, match="ReduceLROnPlateau follows 'val_los', .*; until then the learning rate stays as it is"):
        fit(tmp_path, module=Followed("val_los", strict=False), rounds=1, local_steps=1, eval_every=1)  # type: ignore[arg-type]
    for module, message in (
        (Scheduled(PLATEAU), r'ReduceLROnPlateau follows a metric: name it beside the scheduler, as in "monitor": "val_loss"'),
        (
            Scheduled(PLATEAU, monitor="a", interval="step"),
            "ReduceLROnPlateau follows a figure of whole rounds: set its interval to epoch",
        ),
        (Scheduled(SCHEDULERS["StepLR"], interval="batch"), "a scheduler's interval is epoch or step; got 'batch'"),
        (
            Scheduled(SCHEDULERS["StepLR"], every=3),
            "Scheduled.configure_optimizers returns the keys every: a scheduler's dictionary has",
        ),
        (Scheduled(lambda optimizer: 3), "Scheduled.configure_optimizers returns int as scheduler"),
    ):
        with one_line(ValueError, message):
            make_trainer(None).prepare(module, TinyData())
