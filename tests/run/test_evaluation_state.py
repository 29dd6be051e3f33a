"""What an evaluation keeps for the next one, and what it leaves on the user's module."""

from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import torchmetrics
from engine.test_lightning_hooks import Both, Plain
from harness import NUM_CLASSES, fit

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
