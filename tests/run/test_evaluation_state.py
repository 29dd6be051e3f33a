"""What an evaluation keeps for the next one, and what it leaves on the user's module."""

from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import pytest
import torch
import torchmetrics
from engine.test_lightning_hooks import Both, Plain
from harness import NUM_CLASSES, fit, make_trainer

from run.test_attributes_of_hooks import EXECUTORS, Scaled, figures

OPTIONS: dict[str, Any] = {"rounds": 4, "local_steps": 2, "eval_every": 1}


class Best(Plain):
    """Keeps the best accuracy of all rounds, as lightning-hydra-template does. The third round's evaluation is the worst."""

    test_step = L.LightningModule.test_step  # type: ignore[assignment]

    def __init__(self) -> None:
        super().__init__()
        self.accuracy = torchmetrics.Accuracy(task="multiclass", num_classes=NUM_CLASSES)
        self.best = torchmetrics.MaxMetric()

    def on_train_start(self) -> None:
        self.best.reset()

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        outputs = self(batch[0])
        self.accuracy(-outputs if self.current_epoch == 2 else outputs, batch[1])
        self.log("val/accuracy", self.accuracy)

    def on_validation_epoch_end(self) -> None:
        self.best(9.0 if self.trainer.sanity_checking else self.accuracy.compute())
        self.log("val/best", self.best.compute())


def test_metrics_that_a_module_computes_itself_go_on(tmp_path: Path) -> None:
    """A reset in ``on_train_start`` reaches them. The step's other set, the test set, does not change them."""
    rows = fit(tmp_path, module=Best(), data=Both(), num_sanity_val_steps=1, **OPTIONS).history
    of = {name: np.array([row[name] for row in rows]) for name in ("val/accuracy", "val/best", "test/accuracy", "test/best")}
    assert (of["val/best"] == np.maximum.accumulate(of["val/accuracy"])).all()
    assert of["val/best"][2] > of["val/accuracy"][2], "otherwise the test shows nothing"
    assert (of["test/best"] == of["test/accuracy"]).all() and (of["test/accuracy"] == of["val/accuracy"]).all()


class Collects(Plain):
    """Keeps values of its evaluations on itself."""

    def __init__(self) -> None:
        super().__init__()
        self.lowest, self.steps = 1e9, 0
        self.predictions: list[Any] = []
        self.confusion = torchmetrics.ConfusionMatrix(task="multiclass", num_classes=NUM_CLASSES)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        loss = super().training_step(batch, batch_idx)
        self.lowest = min(self.lowest, float(loss) - self.trainer.testing)
        self.log("val_loss", loss)

    def on_train_epoch_end(self) -> None:
        self.log("lowest", self.lowest)
        self.log("steps", self.steps)

    def on_test_epoch_start(self) -> None:
        self.predictions = []

    def test_step(self, batch: Any, batch_idx: int) -> None:
        self.predictions.append(self(batch[0]).argmax(1))
        self.confusion.update(self.predictions[-1], batch[1])
        self.log("test_rows", float(len(batch[0])))

    def on_predict_start(self) -> None:
        self.net.began = 3

    def predict_step(self, batch: Any, batch_idx: int) -> Any:
        self.last = self(batch[0])
        return self.last


class CollectsWithoutTest(Collects):
    on_test_epoch_start = L.LightningModule.on_test_epoch_start
    test_step = L.LightningModule.test_step  # type: ignore[assignment]


@pytest.mark.parametrize("options", EXECUTORS, ids=str)
@pytest.mark.parametrize("kind", [Collects, CollectsWithoutTest])
def test_hooks_between_rounds_read_what_evaluations_set(kind: type, options: dict[str, Any], tmp_path: Path) -> None:
    rows = fit(tmp_path, module=kind(), data=Both(), **OPTIONS | options).history
    losses = [row["val/loss"] for row in rows]
    assert [row["lowest"] for row in rows] == pytest.approx(list(np.minimum.accumulate(losses))), "the test set does not count"


@pytest.mark.parametrize("options", EXECUTORS, ids=str)
def test_clients_read_what_evaluations_set(options: dict[str, Any], tmp_path: Path) -> None:
    class OfEvaluations(Scaled):
        factor = 1.0

        def validation_step(self, batch: Any, batch_idx: int) -> None:
            super().validation_step(batch, batch_idx)
            self.factor = self.current_epoch + 2.0

        def scale(self) -> Any:
            return self.factor

    assert figures(tmp_path, OfEvaluations(), **options) == pytest.approx(figures(tmp_path, Scaled(), **options))


def test_what_training_counts_too_is_its_own(tmp_path: Path) -> None:
    class Counts(Collects):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            self.steps += 1
            return super().training_step(batch, batch_idx)

    class CountsTwice(Counts):
        def on_validation_epoch_end(self) -> None:
            self.steps += 100

    options = OPTIONS | EXECUTORS[0]
    once, twice = (fit(tmp_path, module=kind(), data=Both(), **options).history for kind in (Counts, CountsTwice))
    assert [row["steps"] for row in once] == [row["steps"] for row in twice] and once[0]["steps"] > 0


def test_a_module_has_what_its_evaluation_outside_fit_sets(tmp_path: Path) -> None:
    trainer, data, module = make_trainer(tmp_path, **OPTIONS), Both(eval_batch_size=20), Collects()
    trainer.test(module, data)
    assert data.federation.test is not None
    inputs = data.federation.test.inputs.double()
    assert torch.equal(torch.cat(module.predictions), module(inputs).argmax(1)) and len(module.predictions) == 2
    assert float(module.confusion.compute().sum()) == len(inputs)
    assert module.lowest == 1e9 and module.net.training
    loss = trainer.validate(module, data)["val/loss"]
    assert module.lowest <= loss
    predicted = trainer.predict(module, data)
    assert torch.equal(module.last, predicted[-1]) and module.net.began == 3 and module.training
