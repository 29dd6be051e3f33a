"""Values that a training_step logs become columns train/<name>: means over the local steps and clients, weighted like the loss."""

import functools
import warnings
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import pytest
import torch
import torch.nn.functional as F
import torchmetrics
from datamodules.common import one_line
from harness import NUM_CLASSES, SIZES, TinyData, fit, make_trainer, train
from lightning.pytorch.callbacks import EarlyStopping
from torch import Tensor

from engine.test_lightning_hooks import Client, Plain
from flcog.callbacks import SCAFFOLD, FedSAM
from flcog.datamodules import TorchDataset
from flcog.settings import can_compile

HOWS: dict[str, dict[str, Any]] = {
    "loop": {"executor": "loop"},
    "threads": {"chunk_size": 2},
    "vmap": {"executor": "vmap"},
    "compiled": {"executor": "vmap", "compile": True},
}


class Logging:
    """Logs a multiple of its loss, some numbers, and a value only in its first step."""

    def training_step(self: Any, batch: Any, batch_idx: int) -> Tensor:
        loss = F.cross_entropy(self(batch[0]), batch[1])
        self.log("train_double", 2 * loss, prog_bar=True)
        self.log_dict({"train/step": float(batch_idx), "rows": len(batch[1]), "train_loss": 7 * loss})
        if batch_idx == 0:
            self.log("first", loss)
        return loss


class Logs(Logging, Plain):
    pass


class LogsInClient(Logging, Client):
    pass


@functools.cache
def reference(rounds: int = 1) -> dict[str, float]:
    """The columns of one round with two local epochs of batches of 4 rows, computed from the batches that the engine drew."""
    trainer = train(module=Plain(), clients_per_round=8, rounds=rounds, local_epochs=2)
    figures = {"train/loss": trainer.rows[-1]["train/loss"]}
    sizes = np.array(SIZES)
    steps = 2 * -(-sizes // 4)
    weights = sizes / sizes.sum()
    figures["train/double"] = 2 * figures["train/loss"]
    figures["train/step"] = float((weights * (steps - 1) / 2).sum())
    figures["train/rows"] = float((weights * 2 * sizes / steps).sum())
    return figures


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("kind", [Logs, LogsInClient])
def test_logged_values_become_columns(kind: Any, how: str) -> None:
    if how == "compiled" and not can_compile():
        pytest.skip("torch is too old")
    trainer = train(module=kind(), clients_per_round=8, rounds=1, local_epochs=2, **HOWS[how])
    row = {name: value for name, value in trainer.rows[-1].items() if name.startswith("train/")}
    first = row.pop("train/first")
    assert 0 < first < 10
    if kind is Logs:
        assert row == pytest.approx(reference(), rel=1e-9)
    assert row["train/double"] == pytest.approx(2 * row["train/loss"]) and row["train/step"] == pytest.approx(
        reference()["train/step"]
    )


def test_the_first_step_is_weighted_by_the_clients_weights() -> None:
    """The value is the loss of the initial model, because no client has changed the model in its first step."""
    trainer = make_trainer(None, clients_per_round=8, local_steps=2)
    model = Logs()
    trainer.prepare(model, TinyData(batch_size=100))
    figures = trainer.train_round()
    fresh, inputs, targets = Plain().double(), trainer.federation.train.inputs.double(), trainer.federation.train.targets
    losses = F.cross_entropy(fresh(inputs), targets, reduction="none")
    assert figures["train/first"] == pytest.approx(float(losses.mean()))  # clients' means, weighted by their sizes


class Measures(Plain):
    """Logs metric objects. Their values are computed over all steps together, not as means of the steps' values."""

    def __init__(self) -> None:
        super().__init__()
        self.accuracy = torchmetrics.Accuracy(task="multiclass", num_classes=NUM_CLASSES)
        self.largest = torchmetrics.MaxMetric()

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        outputs = self(batch[0])
        self.accuracy(outputs, batch[1])
        self.largest(outputs.max())
        self.log("train_acc", self.accuracy, prog_bar=True)
        self.log("largest", self.largest)
        self.log("plain", (outputs.argmax(1) == batch[1]).float().sum() / len(outputs))
        return F.cross_entropy(outputs, batch[1])


@pytest.mark.parametrize("how", ["loop", "threads"])
def test_metrics_start_anew_with_each_client(how: str) -> None:
    trainer = make_trainer(None, clients_per_round=8, local_steps=1, **HOWS[how])
    trainer.prepare(Measures(), TinyData(batch_size=100))
    figures = trainer.train_round()
    assert figures["train/acc"] == pytest.approx(figures["train/plain"])
    fresh, own = Plain().double(), trainer.federation
    largest = [float(fresh(own.train.inputs[own.partition.client(k)].double()).max()) for k in range(8)]
    assert figures["train/largest"] == pytest.approx(float(np.average(largest, weights=SIZES)))


class ComputesLater(Measures):
    """Logs a metric after each round: the object, or its value."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        self.accuracy.update(self(batch[0]), batch[1])
        return Plain.training_step(self, batch, batch_idx)

    def on_train_epoch_end(self) -> None:
        self.log("train_acc", self.accuracy)


class ComputesItself(ComputesLater):
    def on_train_epoch_end(self) -> None:
        self.log("train_acc", self.accuracy.compute())


@pytest.mark.parametrize("how", ["loop", "threads"])
def test_hooks_between_rounds_compute_no_metrics_of_clients(how: str, tmp_path: Path) -> None:
    for module in (ComputesLater(), ComputesItself()):
        with one_line(
            ValueError, r"self.accuracy.compute\(\) between rounds would cover the last client alone: log the metric in"
        ):
            fit(tmp_path, module=module, **HOWS[how])


class Counts(Plain):
    """Updates metrics in a hook between rounds alone. A logged object is reset as in Lightning, others keep their state."""

    def __init__(self) -> None:
        super().__init__()
        self.once, self.always = torchmetrics.SumMetric(), torchmetrics.SumMetric()

    def on_train_epoch_end(self) -> None:
        self.once.update(self.current_epoch + 1.0)
        self.log("once", self.once)
        self.always.update(self.current_epoch + 1.0)
        self.log("always", self.always.compute())


def test_hooks_between_rounds_log_their_own_metrics(tmp_path: Path) -> None:
    trainer = fit(tmp_path, module=Counts(), rounds=2, **HOWS["threads"])
    assert [(row["once"], row["always"]) for row in trainer.rows] == [(1, 1), (2, 3)]


@pytest.mark.parametrize("executor", ["loop", "vmap"])
def test_methods_that_wrap_the_gradient_keep_the_log_of_the_loss(executor: Any) -> None:
    trainer = train(FedSAM(), SCAFFOLD(), module=Logs(), rounds=1, executor=executor)
    row = trainer.rows[-1]
    assert row["train/double"] == pytest.approx(2 * row["train/loss"])


class LogsInHooks(Logs):
    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.log("train_hook", 3 * outputs["loss"])


def test_values_that_hooks_of_batches_log_become_columns() -> None:
    trainer = train(module=LogsInHooks(), clients_per_round=8, rounds=1, local_epochs=2)
    row = trainer.rows[-1]
    assert row["train/hook"] == pytest.approx(3 * row["train/loss"]) and row["train/double"] == pytest.approx(
        2 * row["train/loss"]
    )


def test_a_nan_is_shown_and_ends_no_run() -> None:
    class Nan(Plain):
        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            self.log("ratio", float("nan"))
            return super().training_step(batch, batch_idx)  # type: ignore[no-any-return]

    assert np.isnan(train(module=Nan(), rounds=1).rows[-1]["train/ratio"])


def test_options_that_mean_something_else_are_explained_once() -> None:
    class Steps(Plain):
        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            loss: Tensor = super().training_step(batch, batch_idx)
            self.log("train_peak", loss, on_step=True, on_epoch=True, reduce_fx="max")
            return loss

    message = r"Steps logs train_peak with on_step=True and reduce_fx=max: its column train/peak is the mean over the local steps"
    with pytest.warns(UserWarning, match=message) as told:
        train(module=Steps(), chunk_size=2)
    assert len([each for each in told if "train_peak" in str(each.message)]) == 1


class Penalised(Plain):
    """Logs its loss, or a multiple of it, in its first steps."""

    factor = 1.0

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss: Tensor = super().training_step(batch, batch_idx)
        if batch_idx < 2:
            self.log("train_loss", self.factor * loss)
        return loss


class ByHand(Penalised):
    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss, optimizer = super().training_step(batch, batch_idx), self.optimizers()
        optimizer.zero_grad()  # type: ignore[union-attr]
        self.manual_backward(loss)
        optimizer.step()  # type: ignore[union-attr,call-arg]
        return loss


@pytest.mark.parametrize("kind", [Penalised, ByHand])
@pytest.mark.parametrize("executor", ["loop", "auto"])
def test_a_logged_loss_that_is_not_returned_is_told_once(kind: Any, executor: Any) -> None:
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        row = train(module=kind(), rounds=1, executor=executor).rows[-1]
        assert not [each for each in told if "training_step returns" in str(each.message)]
        penalised = kind()
        penalised.factor = 2.0
        assert train(module=penalised, rounds=2, executor=executor).rows[0]["train/loss"] == row["train/loss"]
    (message,) = [str(each.message) for each in told if "training_step returns" in str(each.message)]
    assert message.startswith(f"{kind.__name__} logs train_loss with another value than training_step returns (")
    assert message.endswith(
        "its column train/loss is the returned loss; log the value under another name, such as train_objective"
    )


def test_a_logged_loss_beside_the_sum_of_manual_backward_is_told() -> None:
    class Adversarial(ByHand):
        factor = 2.0

        def training_step(self, batch: Any, batch_idx: int) -> None:  # type: ignore[override]
            super().training_step(batch, batch_idx)

    message = r"Adversarial logs train_loss with another value than manual_backward gets \(.*: its column train/loss is the sum of these"
    with pytest.warns(UserWarning, match=message):
        train(module=Adversarial(), rounds=1)


def test_several_numbers_are_refused() -> None:
    class Wide(Plain):
        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            self.log("wide", batch[0])
            return super().training_step(batch, batch_idx)  # type: ignore[no-any-return]

    with pytest.raises(ValueError, match=r"Wide logs wide with shape \[4, 6\]: log a single number, such as its mean"):
        train(module=Wide())


@pytest.mark.parametrize("how", HOWS)
def test_names_that_end_alike_are_different_columns(how: str) -> None:
    class Heads(Plain):
        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            self.log_dict({"train/cls/acc": 1.0, "train/reg/acc": 2.0, "train/cls/loss": 3.0, "train_acc": 4.0})
            return super().training_step(batch, batch_idx)  # type: ignore[no-any-return]

    if how == "compiled" and not can_compile():
        pytest.skip("torch is too old")
    row = train(module=Heads(), rounds=1, **HOWS[how]).rows[-1]
    assert [row[f"train/{name}"] for name in ("cls/acc", "reg/acc", "cls/loss", "acc")] == [1, 2, 3, 4]


def test_two_names_of_one_column_are_refused() -> None:
    class Twice(Plain):
        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            self.log_dict({"acc": 1.0, "train_acc": 2.0})
            return super().training_step(batch, batch_idx)  # type: ignore[no-any-return]

    with pytest.raises(ValueError, match="the logged values 'acc' and 'train_acc' would both be the column 'acc': rename one"):
        train(module=Twice())


def test_the_progress_bar_and_callbacks_see_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    seen: list[dict[str, Any]] = []

    class Looks(L.Callback):
        def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
            seen.append({**trainer.callback_metrics, "shown": trainer.progress_bar_metrics})

    stop = EarlyStopping("rows", mode="max", patience=1)
    trainer = fit(tmp_path, Looks(), stop, module=Logs(), rounds=5, clients_per_round=8)
    assert len(trainer.history) == 2  # the column rows does not improve
    assert float(seen[0]["train_double"]) == float(seen[0]["double"]) == pytest.approx(trainer.history[0]["train/double"])
    assert "train/double" in seen[0]["shown"] and "train/step" not in seen[0]["shown"]


def test_silos_and_rounds_by_hand_return_them() -> None:
    trainer = make_trainer(None, local_steps=1)
    trainer.prepare(Logs(), TinyData())
    assert trainer.train_round()["train/rows"] == 4


def test_a_data_set_of_dicts_logs_too() -> None:
    class Dicts(L.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(2, 1)

        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            self.log("mean", batch["x"].mean())
            return self.layer(batch["x"]).square().mean()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    trainer = make_trainer(None, local_steps=1, clients_per_round=1.0)
    trainer.prepare(Dicts(), TorchDataset([{"x": torch.full((2,), 3.0)}] * 8, num_clients=2, num_workers=0))
    assert trainer.train_round()["train/mean"] == 3
