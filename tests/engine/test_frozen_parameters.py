"""Parameters that do not require gradients are held once, not averaged, not sent, written once, and unchanged after a resume."""

from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from datamodules.common import one_line
from faithful.modules import Plain
from harness import (
    NUM_CLASSES,
    NUM_FEATURES,
    SGD,
    BatchNormFeatures,
    assert_close,
    few_quickly,
    fit,
    train,
)
from torch import Tensor, nn

import flcog
from flcog.execute.placements import Threads
from flcog.models import MLP, LoRA
from flcog.models.lora import Still

EXECUTORS: list[dict[str, Any]] = [{"executor": "loop"}, {"chunk_size": 2}, {"executor": "vmap"}]


def adapted(seed: int = 0) -> flcog.Classifier:
    torch.manual_seed(seed)
    return flcog.Classifier(LoRA(MLP(NUM_FEATURES, (32,), NUM_CLASSES), rank=2), optimizer=SGD)


def test_they_are_held_once_and_left_as_they_were() -> None:
    module = adapted()
    frozen = {name: value for name, value in module.named_parameters() if not value.requires_grad}
    before = {name: value.detach().double() for name, value in frozen.items()}
    trainer = train(module=module, **EXECUTORS[1])
    model, executor = trainer.run.model, trainer.executor.placement
    assert list(model.constants) == list(frozen) == ["model.hidden.0.layer.weight", "model.hidden.0.layer.bias"]
    assert isinstance(executor, Threads)
    for copied in [model.module, *(executor._free.get().learner.model.module for _ in range(2))]:
        assert all(value is dict(copied.named_parameters())[name] for name, value in frozen.items())
    assert all(torch.equal(value, before[name]) for name, value in frozen.items())


@pytest.mark.parametrize("options", EXECUTORS, ids=str)
def test_only_the_others_travel(options: dict[str, Any]) -> None:
    trainer = train(module=adapted(), rounds=2, **options)
    sent = 2 * NUM_FEATURES + 32 * 2 + 32 * NUM_CLASSES + NUM_CLASSES
    assert list(trainer.params) == ["model.hidden.0.A", "model.hidden.0.B", "model.head.weight", "model.head.bias"]
    assert trainer.ledger.up["model"] == trainer.ledger.down["model"] == 2 * 5 * 8 * sent
    assert_close(trainer.params, train(module=adapted(), rounds=2).params, 1e-12)


def test_statistics_of_a_frozen_batchnorm_neither_move_nor_travel() -> None:
    network = LoRA(BatchNormFeatures(), rank=2)
    trainer = train(module=flcog.Classifier(network, SGD), executor="vmap")
    assert not trainer.buffers and not trainer.run.model.mixes_rows
    assert "model.body.1.layer.running_mean" in trainer.run.model.constants
    assert float(network.body[1].layer.num_batches_tracked) == 0


class Resting(L.LightningModule):
    """A user's own module that puts its first layers into evaluation mode."""

    def __init__(self, place: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.place, norm = place, nn.BatchNorm1d(NUM_FEATURES, affine=False)
        # Layers of Still are constants in evaluation mode, whatever the mode of the module.
        self.first = nn.Sequential(Still(norm)) if place == "Still" else nn.Sequential(norm, nn.Dropout(0.5))
        self.net = MLP(NUM_FEATURES, (8,), NUM_CLASSES)
        self._rest("constructor")

    def _rest(self, place: str) -> None:
        if self.place == place:
            self.first.eval()

    def setup(self, stage: str) -> None:
        self._rest("setup")

    def configure_model(self) -> None:
        self._rest("configure_model")

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return nn.functional.cross_entropy(self.net(self.first(batch[0])), batch[1])

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        assert not self.training and not self.first.training
        self.log("val_loss", self.training_step(batch, batch_idx))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


class FaithfullyResting(Resting):
    def on_train_batch_end(self, *args: Any) -> None:
        assert self.training and not self.first.training


@pytest.mark.parametrize("place", ["constructor", "setup", "configure_model"])
@pytest.mark.parametrize(("kind", "options"), [*((Resting, each) for each in EXECUTORS), (FaithfullyResting, {})], ids=str)
def test_layers_train_in_the_mode_that_the_module_gave_them(kind: type[Resting], options: dict[str, Any], place: str) -> None:
    ours, alone = train(module=kind(place), **options), train(module=Resting("Still"))
    assert_close(ours.params, alone.params, 1e-12)
    assert (
        float(ours.buffers["first.0.running_mean"].abs().max()) == 0 and float(ours.buffers["first.0.num_batches_tracked"]) == 0
    )


def test_a_module_in_evaluation_mode_trains_in_it_with_a_warning(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match=r"Found \d module\(s\) in eval mode at the start of training"):
        trainer = fit(tmp_path, module=Resting("nowhere").eval(), rounds=1)
    assert float(trainer.buffers["first.0.num_batches_tracked"]) == 0


def test_client_modules_and_networks_train_in_training_mode() -> None:
    for module in (flcog.Classifier(BatchNormFeatures(), SGD).eval(), BatchNormFeatures().eval()):
        trainer = train(module=module)
        assert all(layer.training for layer in trainer.run.model.module.modules())
        assert float(trainer.buffers["model.body.1.num_batches_tracked"]) > 0


class Half(Plain):
    """A user's own module that freezes its first layer and gives all its parameters to the optimiser."""

    def __init__(self) -> None:
        super().__init__()
        self.net.hidden.requires_grad_(False)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1, weight_decay=0.1)


def test_an_optimiser_may_be_given_all_parameters() -> None:
    trainer = train(module=Half())
    assert list(trainer.params) == ["net.head.weight", "net.head.bias"]
    torch.manual_seed(0)
    network = MLP(NUM_FEATURES, (8,), NUM_CLASSES)
    network.hidden.requires_grad_(False)
    ours = train(module=flcog.Classifier(network, lambda params: torch.optim.SGD(params, lr=0.1, weight_decay=0.1)))
    assert_close({n.removeprefix("net."): v for n, v in trainer.params.items()}, ours.state, 0)


# Checkpoints ----------------------------------------------------------------------------------------------------------------------


def test_a_checkpoint_names_one_file_with_them(tmp_path: Path) -> None:
    folder = fit(tmp_path, module=adapted(), rounds=2, eval_every=1).run_dir / "checkpoints"  # type: ignore[operator]
    saved = torch.load(folder / "last.ckpt", weights_only=True)
    assert "model.hidden.0.layer.weight" not in saved["params"]
    assert [path.name for path in folder.glob("frozen-*")] == [saved["frozen"]]
    assert torch.load(folder / "best.ckpt", weights_only=True)["frozen"] == saved["frozen"]
    weights = torch.load(folder / saved["frozen"], weights_only=True)["params"]
    assert_close(weights, {n: v.detach().double() for n, v in adapted().named_parameters() if not v.requires_grad}, 0)
    plain = fit(tmp_path, rounds=1, eval_every=1).run_dir
    assert not list(plain.glob("checkpoints/frozen-*"))  # type: ignore[union-attr]


def _freeze(module: Any) -> None:
    module.net.hidden[0].requires_grad_(False)


class InSetup(Plain):
    def setup(self, stage: str) -> None:
        _freeze(self)


class InConfigureModel(Plain):
    def configure_model(self) -> None:
        _freeze(self)


@pytest.mark.parametrize("kind", [InSetup, InConfigureModel])
def test_hooks_before_the_run_freeze(kind: type[Plain]) -> None:
    module = kind()
    before = {name: value.detach().double() for name, value in module.named_parameters()}
    assert set(train(module=module).params) == {name for name in before if not name.startswith("net.hidden.0.")}
    after = {name: value.detach() for name, value in module.named_parameters() if not value.requires_grad}
    assert len(after) == 2
    assert_close(after, {name: before[name] for name in after}, 0)


class OnFitStart(Plain):
    def on_fit_start(self) -> None:
        _freeze(self)


class InASecondRound(Plain):
    def on_train_epoch_start(self) -> None:
        if self.current_epoch == 1:
            _freeze(self)


class AsACallback(L.Callback):
    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        _freeze(pl_module)


@pytest.mark.parametrize("executor", few_quickly(["auto", "vmap", "loop"], 1))
@pytest.mark.parametrize(("kind", "callbacks"), [(OnFitStart, []), (InASecondRound, []), (Plain, [AsACallback()])])
def test_hooks_of_the_run_freeze(kind: type[Plain], callbacks: list[Any], executor: str, tmp_path: Path) -> None:
    """A frozen layer stays where it is when it is frozen, and the others train on."""
    runs = [fit(tmp_path, *callbacks, module=kind(), rounds=rounds, executor=executor) for rounds in (1, 3)]
    frozen = {name: value for name, value in runs[0].params.items() if name.startswith("net.hidden.0.")}
    assert len(frozen) == 2 and all(torch.equal(runs[1].params[name], value) for name, value in frozen.items())
    assert not torch.equal(runs[1].params["net.head.weight"], runs[0].params["net.head.weight"])
    began = dict(Plain().double().named_parameters())
    assert all(torch.equal(value, began[name]) for name, value in frozen.items()) == (kind is not InASecondRound)
    loop = fit(tmp_path, *callbacks, module=kind(), rounds=3, executor="lightning")
    assert_close(runs[1].params, loop.params, 1e-12)


def test_what_was_frozen_before_the_run_stays_frozen(tmp_path: Path) -> None:
    class Frees(InSetup):
        def on_train_epoch_start(self) -> None:
            self.net.hidden[0].requires_grad_(True)

    with one_line(ValueError, "a hook sets requires_grad of net.hidden.0.weight, .*: freeze it in on_fit_start, and not in"):
        fit(tmp_path, module=Frees())
