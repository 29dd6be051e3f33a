"""Attributes that a hook of an epoch or of the run sets: clients under every executor, and evaluations, read them."""

from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from datamodules.common import one_line
from engine.test_lightning_hooks import Both, Plain
from harness import NUM_CLASSES, NUM_FEATURES, fit
from torch import Tensor, nn

EXECUTORS: list[dict[str, Any]] = [
    {"executor": "loop", "chunk_size": 1},
    {"executor": "loop", "chunk_size": 2},
    {"executor": "vmap", "chunk_size": 2},
]
OPTIONS: dict[str, Any] = {"rounds": 3, "local_steps": 2, "eval_every": 1, "precision": "64-true"}


def figures(root: Path, module: Any, *callbacks: Any, **options: Any) -> list[float]:
    """The losses of all rounds, of clients and of the evaluation."""
    rows = fit(root, *callbacks, module=module, data=Both(), **OPTIONS | options).history
    return [row[name] for row in rows for name in ("train/loss", "val/loss")]


class Scaled(Plain):
    """Multiplies its clients' loss by the number of the round, which no hook sets."""

    def scale(self) -> Any:
        return float(self.current_epoch + 1)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return super().training_step(batch, batch_idx) * self.scale()

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val_loss", super().training_step(batch, batch_idx))


class Annealed(Scaled):
    """Computes the same from objects that its hooks set, in evaluations too."""

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val_loss", self.training_step(batch, batch_idx))

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("part", torch.zeros(()), persistent=False)
        self.last = nn.Sequential(nn.Identity(), nn.Hardtanh(-1.0, 0.0))
        self.values, self.weight = [0.0], torch.zeros(())
        self.whole = {"net": self.net, "one": torch.zeros(())}

    def on_train_start(self) -> None:
        self.whole["one"] = torch.ones(())

    def on_train_epoch_start(self) -> None:
        self.part.fill_(0.25)
        self.last[1] = nn.Hardtanh(-1e9, 1e9)
        self.values[0], self.weight = self.current_epoch / 2, torch.tensor(self.current_epoch / 2 + 0.75)

    def scale(self) -> Any:
        return (self.part + self.values[0] + self.weight) * self.whole["one"]

    def forward(self, inputs: Tensor) -> Any:
        return self.last(self.whole["net"](inputs))


class Sets(L.Callback):
    """Sets an attribute of the module."""

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        pl_module.w = trainer.current_epoch + 1.0


class Weighted(Annealed):
    w = 0.0

    def on_train_epoch_start(self) -> None:
        self.last = nn.Identity()  # type: ignore[assignment]

    def scale(self) -> Any:
        return self.w


def expected_figures(root: Path, rounds: int) -> list[float]:
    losses = figures(root, Scaled(), **EXECUTORS[0], rounds=rounds)
    return [loss * (place // 2 + 1 if place % 2 else 1) for place, loss in enumerate(losses)]


@pytest.mark.parametrize("options", EXECUTORS, ids=str)
def test_clients_and_evaluations_read_what_a_hook_sets(options: dict[str, Any], tmp_path: Path) -> None:
    expected = pytest.approx(expected_figures(tmp_path, 3))
    assert figures(tmp_path, Annealed(), **options) == expected
    assert figures(tmp_path, Weighted(), Sets(), **options) == expected


@pytest.mark.slow
@pytest.mark.filterwarnings("error:.*cannot be compiled")
def test_compiled_steps_read_what_a_hook_sets(tmp_path: Path) -> None:
    options, expected = {"precision": "32-true", "rounds": 2}, expected_figures(tmp_path, 2)
    with pytest.warns(UserWarning, match="trainer.compile: a hook changed self.w, so local steps are compiled again"):
        assert figures(tmp_path, Weighted(), Sets(), **options, executor="vmap", chunk_size=2, compile=True) == pytest.approx(
            expected, rel=1e-5
        )


class Normed(Plain):
    """Keeps its statistics from the second round on."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(NUM_FEATURES)
        self.head = nn.Linear(NUM_FEATURES, NUM_CLASSES)

    def forward(self, inputs: Tensor) -> Any:
        return self.head(self.norm(inputs))

    def on_train_epoch_start(self) -> None:
        self.norm.train(self.current_epoch == 0)


@pytest.mark.parametrize("options", EXECUTORS, ids=str)
def test_layers_that_a_hook_puts_into_evaluation_mode(options: dict[str, Any], tmp_path: Path) -> None:
    once, more = (fit(tmp_path, module=Normed(), **OPTIONS | options | {"rounds": rounds}) for rounds in (1, 3))
    assert torch.equal(once.run.buffers["norm.running_mean"], more.run.buffers["norm.running_mean"])
    assert not torch.equal(once.params["head.weight"], more.params["head.weight"])


def test_evaluations_use_their_own_layers(tmp_path: Path) -> None:
    """A hook's object that refers to a layer refers to the evaluated weights there."""
    run = fit(tmp_path, module=Annealed(), data=Both(), **OPTIONS).run
    evaluated: Any = run.model.eval_module
    assert evaluated.whole["net"] is evaluated.net and evaluated.net is not run.model.module.net
    assert not evaluated.training and not evaluated.last[1].training


def test_a_persistent_buffer_that_a_hook_changes_is_refused(tmp_path: Path) -> None:
    class Changes(Plain):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("tau", torch.ones(()))

        def on_train_epoch_start(self) -> None:
            self.tau.mul_(0.9)

    with one_line(
        ValueError, "Changes.on_train_epoch_start changes the persistent buffer tau of the global model, which only the"
    ):
        fit(tmp_path, module=Changes(), **OPTIONS)


def test_a_hook_may_look_at_samples(tmp_path: Path) -> None:
    """A forward pass in a hook changes statistics of torch's layers, which stay the global model's."""

    class Looks(Normed):
        def on_train_epoch_start(self) -> None:
            if self.looks:
                self(torch.randn(5, NUM_FEATURES, dtype=torch.float64, generator=torch.Generator().manual_seed(0)))

    states = []
    for Looks.looks in (False, True):  # type: ignore[attr-defined]
        states.append(fit(tmp_path, module=Looks(), **OPTIONS).run.buffers)
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


def test_a_hook_that_changes_nothing_copies_nothing(tmp_path: Path) -> None:
    class Reads(Plain):
        def on_train_epoch_start(self) -> None:
            self.log("began", self.current_epoch)

    run = fit(tmp_path, module=Reads(), **OPTIONS).run
    assert run.model.copies.version == 0


def test_objects_that_cannot_be_copied_are_shared(tmp_path: Path) -> None:
    class Opens(Plain):
        def on_train_start(self) -> None:
            self.file = (tmp_path / "notes").open("w")

    run = fit(tmp_path, module=Opens(), **OPTIONS).run
    assert run.model.eval_module.file is run.model.module.file  # type: ignore[union-attr]
    run.model.module.file.close()  # type: ignore[union-attr]
