"""Steps on several batches have Lightning's hooks and numbers. With methods, they give the numbers of steps on one large batch."""

from typing import Any

import lightning as L
import pytest
import torch
from contracts.registry import client_states
from datamodules.common import one_line
from faithful.modules import Gan, Lit, Notes, recording
from faithful.side_by_side import ONE_CLIENT, on_its_batches
from harness import TinyData, assert_close, classifier, train
from torch.utils.data import DataLoader, TensorDataset

import flcog
from flcog.callbacks import SCAFFOLD, Ditto, FedProx


@pytest.mark.parametrize(
    ("data", "options"),
    [
        (TinyData(batch_size=4), ONE_CLIENT),
        (TinyData(batch_size=5, order=(1,)), ONE_CLIENT | {"local_steps": None, "local_epochs": 1}),
    ],
    ids=["steps", "a pass of 5, 5 and 2 samples"],
)
def test_hooks_and_numbers_are_lightnings(data: TinyData, options: dict[str, Any]) -> None:
    calls: list[str] = []
    ours = train(Notes(calls), module=recording(Lit, calls), data=data, accumulate_grad_batches=2, **options)
    theirs: list[str] = []
    module = on_its_batches(recording(Lit, theirs), ours, Notes(theirs), accumulate_grad_batches=2)
    assert calls == theirs and calls.count("optimizer_step") * 2 >= calls.count("callback on_train_batch_end") > 2
    assert_close(ours.params, {name: p.detach() for name, p in module.named_parameters()}, 1e-12)


@pytest.mark.parametrize("method", [SCAFFOLD(), FedProx(), Ditto()], ids=lambda method: method.name)
def test_two_halves_of_a_batch_are_one_step_of_methods(method: flcog.Method) -> None:
    halves = train(method, data=TinyData(batch_size=2), accumulate_grad_batches=2)
    whole = train(method, data=TinyData(batch_size=4))
    assert_close(halves.params, whole.params, 1e-12)
    assert_close(client_states(halves), client_states(whole), 1e-12)
    assert [row["train/loss"] for row in halves.rows] == pytest.approx([row["train/loss"] for row in whole.rows])


class Looks(Lit):
    def __init__(self, seen: list[Any]) -> None:
        super().__init__()
        self.seen = seen

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        trainer = self.trainer
        numbers = trainer.num_training_batches, trainer.estimated_stepping_batches, trainer.accumulate_grad_batches
        self.seen.append((batch_idx, self.global_step, *numbers))


def test_batches_and_steps_are_counted() -> None:
    seen: list[Any] = []
    train(module=Looks(seen), accumulate_grad_batches=3, **ONE_CLIENT | {"local_steps": 2})
    assert seen == [(batch, (batch + 1) // 3, 6, 2, 3) for batch in range(6)]


class Sgd(Lit):
    """A module without momentum, because clients get a fresh optimiser in each round."""

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.3)


class Skips(Sgd):
    """Has no loss on the first or the second batch of each step."""

    def __init__(self, skipped: int = 1) -> None:
        super().__init__()
        self.skipped = skipped

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return None if batch_idx % 2 == self.skipped else super().training_step(batch, batch_idx)

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        """The pure step takes no module that skips batches."""


class Zero(Skips):
    """Has a loss of 0 there."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = Sgd.training_step(self, batch, batch_idx)["loss"]
        return 0 * loss if batch_idx % 2 == self.skipped else loss


HALVES: dict[str, Any] = {"data": TinyData(batch_size=2), "accumulate_grad_batches": 2}


@pytest.mark.parametrize("skipped", [0, 1])
def test_a_step_goes_on_without_a_skipped_batch_as_in_lightning(skipped: int) -> None:
    """The gradients of its other batches are clipped, by the trainer or by the module."""
    options: dict[str, Any] = {"accumulate_grad_batches": 2, "gradient_clip_val": 0.01}
    ours = train(module=Skips(skipped), **ONE_CLIENT | HALVES | options)  # type: ignore[arg-type]
    theirs = on_its_batches(Skips(skipped), ours, **options)
    assert_close(ours.params, {name: p.detach() for name, p in theirs.named_parameters()}, 1e-12)


@pytest.mark.parametrize("skipped", [0, 1])
def test_methods_correct_a_step_without_a_skipped_batch(skipped: int) -> None:
    runs = [train(SCAFFOLD(), module=kind(skipped), **HALVES) for kind in (Skips, Zero)]
    assert_close(runs[0].params, runs[1].params, 1e-12)
    assert_close(client_states(runs[0]), client_states(runs[1]), 1e-12)


@pytest.mark.parametrize("overfit", [2, 0.5])
def test_overfitting_reads_lightnings_batches(overfit: int | float) -> None:
    """Three rounds of one local epoch equal three epochs of ``lightning.Trainer``, which does not shuffle with this option."""
    options: dict[str, Any] = {"rounds": 3, "local_steps": None, "local_epochs": 1, "clients_per_round": 1}
    data = TinyData(batch_size=4, order=(3,))
    ours = train(module=Sgd(), data=data, overfit_batches=overfit, **options)
    rows, theirs = torch.from_numpy(data.federation.partition.client(0)), Sgd()
    train_set = data.federation.train
    client = TensorDataset(train_set.inputs[rows].double(), train_set.targets[rows])
    trainer = L.Trainer(
        max_epochs=3,
        accelerator="cpu",
        precision="64-true",
        overfit_batches=overfit,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(theirs, DataLoader(client, batch_size=4, shuffle=True))
    assert_close(ours.params, {name: p.detach() for name, p in theirs.named_parameters()}, 1e-12)


def test_overfitting_limits_the_validation_set() -> None:
    trainer = train(data=TinyData(), overfit_batches=1, rounds=1)
    assert trainer.settings.limits["val"] == 1 and trainer.run.federation.partition.sizes.max() == 4


@pytest.mark.parametrize(
    ("module", "options", "message"),
    [
        (Gan, {"accumulate_grad_batches": 2}, "accumulate_grad_batches=2: Gan takes its steps itself"),
        (classifier, {"accumulate_grad_batches": 0}, "accumulate_grad_batches must be a whole number of at least 1; got 0"),
        (
            classifier,
            {"accumulate_grad_batches": {0: 2}},
            "accumulate_grad_batches must be a whole number of at least 1; got {0: 2}",
        ),
        (classifier, {"overfit_batches": 1.5}, "overfit_batches must be a count"),
    ],
)
def test_bad_input(module: Any, options: dict[str, Any], message: str) -> None:
    with one_line(ValueError, message):
        train(module=module(), rounds=1, **options)
