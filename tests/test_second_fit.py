"""Two fits in Python: the trainer's seed does not cover the model's first weights, and a second fit starts from the trained model."""

import contextlib
import io
from pathlib import Path
from typing import Any

import pytest
from harness import TinyData, distance, make_trainer
from torch import nn

import flcog
from flcog.method import Params


def fresh() -> flcog.Classifier:
    return flcog.Classifier(nn.Linear(6, 3))


def fit(root: Path, model: flcog.Classifier, ckpt_path: str | None = None, rounds: int = 1) -> tuple[Params, str]:
    """The trained model, and the printed output of the run."""
    trainer = make_trainer(root, rounds=rounds)
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        trainer.fit(model, TinyData(), ckpt_path)
    return trainer.run.params, printed.getvalue()


def test_fresh_models_are_equal_from_the_same_seed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PL_GLOBAL_SEED", "PL_SEED_WORKERS"):
        monkeypatch.setenv(name, "0")  # seed_everything sets them
    first, other = fit(tmp_path, fresh())[0], fit(tmp_path, fresh())[0]
    assert distance(first, other) > 0, "the trainer's seed comes after the model's first weights"
    seeded = []
    for _ in range(2):
        flcog.seed_everything(3)
        seeded.append(fit(tmp_path, fresh())[0])
    assert distance(*seeded) == 0


def test_a_second_fit_says_that_it_starts_from_the_first_ones_model(tmp_path: Path) -> None:
    model = fresh()
    assert "earlier fit" not in fit(tmp_path, model)[1]
    assert "an earlier fit trained this model, and this one starts from it: make a new one" in " ".join(
        fit(tmp_path, model)[1].split()
    )
    assert "earlier fit" not in fit(tmp_path, model, "last", rounds=2)[1], "a resumed run starts from its checkpoint"
    assert "earlier fit" not in fit(tmp_path, fresh())[1]


def test_a_module_that_keeps_results_is_trained_again(tmp_path: Path) -> None:
    """Models of pytorch-forecasting keep the outputs of their steps, and ``deepcopy`` refuses tensors with a gradient graph."""

    class Keeps(flcog.Classifier):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            loss = super().training_step(batch, batch_idx)
            self.kept = {"outputs": [loss * 2]}
            return loss

    model = Keeps(nn.Linear(6, 3))
    for _ in range(2):
        fit(tmp_path, model)
    assert not model.kept["outputs"][0].is_leaf
