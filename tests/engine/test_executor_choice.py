"""The choice of the executor that runs the clients, and its replacement by another executor."""

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from faithful.modules import Plain
from harness import NUM_CLASSES, NUM_FEATURES, TinyData, assert_close, classifier, make_trainer, train
from torch import Tensor

import flcog
from flcog.data import Samples, Splits
from flcog.method import Context, Method


def test_a_plain_lightning_module_trains_on_the_loop(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trainer = make_trainer(tmp_path, eval_every=1)
        trainer.fit(Plain(), TinyData())
    ours = make_trainer(tmp_path, eval_every=1)
    ours.fit(classifier(), TinyData())
    assert trainer.history[-1]["train/loss"] == pytest.approx(ours.history[-1]["train/loss"], rel=1e-12)
    assert trainer.history[-1]["test/accuracy"] == pytest.approx(ours.history[-1]["test/accuracy"])


def test_what_cannot_be_vmapped_falls_back_with_one_line() -> None:
    class Branching(flcog.Classifier):
        def per_example_loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
            return super().per_example_loss(outputs, targets) * (2.0 if outputs.sum() > 0 else 1.0)

    module = Branching(flcog.models.MLP(NUM_FEATURES, (8,), NUM_CLASSES))
    with pytest.warns(UserWarning, match="executor=vmap falls back to loop: the model fails in a placement with several clients"):
        trainer = train(module=module, executor="vmap")
    assert trainer.executor.name == "loop"

    class Own(torch.optim.SGD):
        pass

    with pytest.warns(UserWarning, match="Own is no elementwise optimiser"):
        make_trainer(None, executor="vmap").prepare(classifier(Own), TinyData())


@dataclass(frozen=True)
class Branches(Method):
    def loss(self, apply: Any, params: Any, batch: Any, loss: Tensor, ctx: Context) -> Tensor:
        return loss if loss > 0 else -loss


def test_a_hook_that_cannot_be_vmapped_trains_in_the_loop() -> None:
    with pytest.warns(
        UserWarning, match="executor=vmap falls back to loop: .* cannot be vectorised .*data-dependent control flow"
    ):
        trainer = train(Branches(), executor="vmap")
    assert trainer.executor.name == "loop"
    assert_close(trainer.params, train(Branches(), executor="loop").params, 0)


def test_auto_says_what_it_chose() -> None:
    tiny, large = (make_trainer(None, executor="auto") for _ in range(2))
    tiny.prepare(classifier(), TinyData())
    assert tiny.executor.name == "vmap" and "small model" in tiny.notes[0]
    large.prepare(flcog.Classifier(flcog.models.SimpleCNN(1)), Pictures())
    assert large.executor.name == "loop" and "only for small models" in large.notes[0]


class Pictures(flcog.FederatedDataModule):
    num_classes = 10

    def load(self) -> Splits:
        return Splits(Samples(torch.zeros(40, 28, 28, 1, dtype=torch.uint8), torch.arange(40) % 10))
