"""Every hook of Lightning that a user defines is either called or named in one warning. No hook is ignored silently."""

import re
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
import torch.nn.functional as F
import torchmetrics
from harness import NUM_CLASSES, NUM_FEATURES, ROOT, TinyData, assert_close, classifier, fit, make_trainer, train
from torch import Tensor, nn

import flcog
from flcog.callbacks import MOON, SCAFFOLD, Ditto, FedSAM, FineTune
from flcog.client.lightning_hooks import (
    CALLED,
    CALLED_BY_FIT,
    CALLED_IN_CLIENTS,
    CALLED_ON_DATA,
    CALLED_TO_EVALUATE,
    CALLED_WITHOUT_DATA,
    lightning_hooks,
)
from flcog.models import MLP, Dropout


class Plain(L.LightningModule):
    """A LightningModule as a user would write it."""

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


def network() -> nn.Module:
    torch.manual_seed(0)
    return MLP(NUM_FEATURES, (8,), NUM_CLASSES)


class Both(TinyData):
    """The tiny data with a validation set, which equals the test set."""

    def load(self) -> flcog.Splits:
        splits = super().load()
        return flcog.Splits(splits.train, splits.test, val=splits.test)


class Client(flcog.Classifier):
    """A client module of flcog."""

    def __init__(self) -> None:
        super().__init__(network(), optimizer=partial(torch.optim.SGD, lr=0.1))


def with_hook(base: type, name: str, calls: list[str]) -> Any:
    """Make an instance of a user's subclass that overrides this hook."""

    def hook(self: Any, *args: Any, **kwargs: Any) -> Any:
        calls.append(name)
        return getattr(super(cls, self), name)(*args, **kwargs)

    if name == "training_step":
        hook = lambda self, batch, batch_idx: (calls.append(name), super(cls, self).training_step(batch, batch_idx))[1]  # noqa: E731
    if name == "predict_step":  # Lightning's own predict_step passes the whole batch to forward
        hook = lambda self, batch, batch_idx: (calls.append(name), self(batch[0]))[1]  # noqa: E731
    cls = type("Mine", (base,), {name: hook})
    return cls()


OF_A_STATE = ("load_state_dict", "on_exception")
"""Hooks of data modules that need a state or an error: tests/run/test_loaders.py calls them."""


def fate(model: Any, data: Any, calls: list[str], root: Path | None = None) -> str:
    """Whether a hook is called, or named in the only warning. With a folder, a whole run and its resume are tried."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer = make_trainer(None, rounds=1, local_steps=1, eval_every=1)
        if root is not None:
            fit(root, module=model, data=data, rounds=1, local_steps=1, eval_every=1)
            fit(root, module=model, data=data, rounds=2, local_steps=1, eval_every=1, ckpt_path="last")
        else:
            trainer.prepare(model, data)
            trainer.train_round()
            trainer.evaluate()
            trainer.predict()
    told = [str(warning.message) for warning in caught if "hooks of Lightning's" in str(warning.message)]
    assert len(told) <= 1 or root is not None
    return "called" if calls and not told else told[0] if told and not calls else f"in silence: {calls} {told}"


@pytest.mark.parametrize("base", [Plain, Client])
@pytest.mark.parametrize("name", [name for name in lightning_hooks(L.LightningModule) if name != "lr_scheduler_step"])
def test_every_hook_of_a_module(name: str, base: type, tmp_path: Path) -> None:
    calls: list[str] = []
    result = fate(with_hook(base, name, calls), Both(), calls, tmp_path if name in CALLED_BY_FIT else None)
    of_test = CALLED_TO_EVALUATE["test"] if base is Plain else set()  # Plain has a test_step
    steps = {"test_step", "validation_step", "predict_step"}
    if name in (CALLED | CALLED_BY_FIT | CALLED_IN_CLIENTS | of_test | steps) - {"log", "log_dict"}:
        assert result == "called"
    elif name in CALLED_WITHOUT_DATA:
        assert "in silence" in result
    elif name not in ("log", "log_dict"):
        assert f"never called in federated training: Mine.{name} (" in result


@pytest.mark.parametrize("name", [name for name in lightning_hooks(flcog.FederatedDataModule) if name not in OF_A_STATE])
def test_every_hook_of_a_data_module(name: str, tmp_path: Path) -> None:
    calls: list[str] = []
    result = fate(Plain(), with_hook(TinyData, name, calls), calls, tmp_path if name in ("state_dict", "teardown") else None)
    if name in CALLED_ON_DATA:
        assert result == "called"
    else:
        assert f"never called in federated training: Mine.{name} (" in result


def test_hooks_are_named_together() -> None:
    class Watching(Client):
        def on_test_start(self) -> None:
            pass

        def on_validation_epoch_end(self) -> None:
            pass

    model = Watching()
    model.on_predict_end = lambda: None  # type: ignore[method-assign]
    with pytest.warns(
        UserWarning, match=r"Watching.on_predict_end, Watching.on_test_start, Watching.on_validation_epoch_end \("
    ) as told:
        make_trainer(None).prepare(model, TinyData())
    assert len(told) == 1


def test_nothing_is_said_of_modules_of_ours() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make_trainer(None).prepare(Client(), TinyData())


# A client module's own training_step ----------------------------------------------------------------------------------------------


def smoothed(outputs: Tensor, targets: Tensor, reduction: str) -> Tensor:
    return F.cross_entropy(outputs, targets, label_smoothing=0.2, reduction=reduction)


class OwnStep(Client):
    """Smooths labels in ``training_step``, as a user of Lightning would write it."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return smoothed(self(batch[0]), batch[1], "mean")


class OwnLoss(Client):
    """The same loss, written as flcog's ``per_example_loss``."""

    def per_example_loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return smoothed(outputs, targets, "none")


@pytest.mark.parametrize(
    "methods",
    [(), (SCAFFOLD(),), (MOON(),), (FedSAM(),), (Ditto(),)],
    ids=lambda methods: "".join(method.name for method in methods) or "FedAvg",
)
def test_a_training_step_of_ones_own_is_what_trains(methods: tuple[flcog.Method, ...]) -> None:
    step, loss, neither = (train(*methods, module=module) for module in (OwnStep(), OwnLoss(), classifier()))
    assert_close(step.params, loss.params, rtol=1e-12)
    assert step.rows[-1]["train/loss"] == pytest.approx(loss.rows[-1]["train/loss"], rel=1e-12)
    assert max(float((step.params[name] - value).abs().max()) for name, value in neither.params.items()) > 1e-4


def test_personal_models_train_by_it_too() -> None:
    def personal(module: flcog.Classifier) -> dict[str, float]:
        trainer = make_trainer(None, FineTune(steps=3), rounds=1)
        trainer.prepare(module, TinyData(client_test=0.3))
        trainer.train_round()
        figures = trainer.evaluate()
        return {name: value for name, value in figures.items() if "personal" in name}

    asked: list[int] = []

    class Counting(OwnStep):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            asked.append(batch_idx)
            return super().training_step(batch, batch_idx)

    assert personal(Counting()) == personal(OwnLoss())
    assert len(asked) == 5 * 4 + 8 * 3


EVERYWHERE: list[dict[str, Any]] = [{"executor": "loop"}, {"chunk_size": 2}, {"executor": "vmap"}]


class WithBatchNorm(Plain):
    """A module with buffers that change in training, and with dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(NUM_FEATURES, 8, bias=False), nn.BatchNorm1d(8), nn.ReLU(), Dropout(0.5), nn.Linear(8, NUM_CLASSES)
        )


@pytest.mark.parametrize("work", [{"local_steps": 3}, {"local_epochs": 2}], ids=["equal", "ragged"])
@pytest.mark.parametrize("kind", [Plain, WithBatchNorm, OwnStep])
def test_it_trains_alike_on_threads_and_batched(kind: type, work: dict[str, Any]) -> None:
    """A user's training_step averages over all rows, so it must not receive padding: only batches of equal size are put together."""
    runs = []
    for how in EVERYWHERE:
        torch.manual_seed(0)
        runs.append(train(*([] if kind is Plain else [SCAFFOLD()]), module=kind(), clients_per_round=8, rounds=2, **work, **how))
    assert [(run.executor.name, run.executor.clients_at_once > 1) for run in runs] == [
        ("loop", False),
        ("loop", True),
        ("vmap", True),
    ]
    assert_close(runs[1].state, runs[0].state, 0)
    assert_close(runs[2].state, runs[0].state, 1e-11)
    assert runs[1].rows == runs[0].rows and runs[2].rows == [pytest.approx(row, rel=1e-9) for row in runs[0].rows]


class Keeps(Plain):
    """Keeps the loss of every batch."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[str, list[float]] = {"losses": []}

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = super().training_step(batch, batch_idx)
        self.seen["losses"].append(float(loss.detach()))
        return loss


class Counts(Plain):
    """Counts steps wrongly: it adds the step's index, so that the count changes only in the second step."""

    steps = 0

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.steps += batch_idx
        return super().training_step(batch, batch_idx)


class Measures(Plain):
    """Updates a metric in every step."""

    def __init__(self) -> None:
        super().__init__()
        self.accuracy = torchmetrics.Accuracy(task="multiclass", num_classes=NUM_CLASSES)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.accuracy(self(batch[0]), batch[1])
        self.log("accuracy", self.accuracy)
        return super().training_step(batch, batch_idx)


class Draws(Plain):
    """Adds noise from torch's global stream to the inputs."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return super().training_step((batch[0] + torch.randn_like(batch[0]), batch[1]), batch_idx)


class Fails(Plain):
    """Fails on batches of one or two samples."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        assert len(batch[0]) > 2
        return super().training_step(batch, batch_idx)


@pytest.mark.parametrize(
    ("kind", "reason", "threads"),
    [
        (Keeps, r"Keeps.training_step keeps something between steps \(self.seen\)", 1),
        (Counts, r"Counts.training_step keeps something between steps \(self.steps\)", 1),
        (Measures, r"Measures.training_step keeps metrics between steps \(self.accuracy", 2),
        (Draws, r"Draws.training_step draws from torch's global stream", 1),
        (Fails, "Fails.training_step fails on two copies of a training sample", 1),
    ],
)
def test_what_is_not_pure_runs_one_client_at_a_time_and_says_why(kind: type, reason: str, threads: int) -> None:
    with pytest.warns(UserWarning, match=f"executor=vmap falls back to loop: {reason}"):
        forced = train(module=kind(), executor="vmap", clients_per_round=1.0, rounds=1)
    side_by_side = make_trainer(None, chunk_size=2)
    side_by_side.prepare(kind(), TinyData())
    assert side_by_side.executor.clients_at_once == threads
    assert threads == 2 or re.search(f"one client at a time: {reason}", side_by_side.notes[0])
    assert_close(forced.params, train(module=kind(), clients_per_round=1.0, rounds=1).params, rtol=0)


def test_looking_leaves_a_module_as_it_was() -> None:
    """Looking may only change values that the module's own training_step keeps."""
    module, stream = WithBatchNorm(), torch.get_rng_state()
    before = {name: value.clone() for name, value in module.double().state_dict().items()}
    make_trainer(None, executor="vmap").prepare(module, TinyData())
    assert torch.equal(torch.get_rng_state(), stream)
    assert_close(module.state_dict(), before, 0)


def test_a_step_that_asks_for_a_tensors_value_falls_back_with_the_reason() -> None:
    class Branches(Plain):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            loss = super().training_step(batch, batch_idx)
            return 2 * loss if loss > 1 else loss

    with pytest.warns(UserWarning, match="executor=vmap falls back to loop: this model or method cannot be vectorised"):
        trainer = train(module=Branches(), executor="vmap")
    assert_close(trainer.params, train(module=Branches()).params, 0)


# A module's own evaluation -----------------------------------------------------------------------------------------------------


class Evaluates(Plain):
    """Logs numbers, a dictionary and metrics, for each batch and at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.accuracy = torchmetrics.Accuracy(task="multiclass", num_classes=NUM_CLASSES)
        self.outputs: list[Tensor] = []

    def on_validation_epoch_start(self) -> None:
        self.outputs.clear()

    def validation_step(self, batch: Any, batch_idx: int) -> Any:
        outputs = self(batch[0])
        self.accuracy.update(outputs, batch[1])
        self.outputs.append(outputs)
        self.log("val_accuracy", self.accuracy)
        self.log_dict({"val/rows": float(len(outputs)), "val/round": float(self.current_epoch)})
        return F.cross_entropy(outputs, batch[1])

    def on_validation_epoch_end(self) -> None:
        if not self.trainer.sanity_checking:
            self.log("val_largest", torch.cat(self.outputs).max())

    def test_step(self, batch: Any, batch_idx: int) -> Any:
        self.log("test_first", float(batch_idx == 0))


def test_validation_and_test_steps_measure_their_own_sets() -> None:
    trainer = make_trainer(None, rounds=2)
    trainer.prepare(Evaluates(), Both(eval_batch_size=20))
    trainer.train_round()
    trainer.train_round()
    for _ in range(2):  # a second evaluation starts from zero
        figures = trainer.evaluate()
    inputs, targets = trainer.federation.val.inputs.double(), trainer.federation.val.targets
    outputs = trainer.run.model.frozen(trainer.params, {}, lambda module: module(inputs))
    assert figures == pytest.approx(
        {
            "val/accuracy": float((outputs.argmax(1) == targets).double().mean()),
            "val/rows": (20 * 20 + 10 * 10) / 30,
            "val/round": 1.0,
            "val/loss": float(F.cross_entropy(outputs, targets)),
            "val/largest": float(outputs.max()),
            "test/first": 20 / 30,
        }
    )


def test_a_client_modules_own_metrics_join_ours() -> None:
    class Also(Client):
        def test_step(self, batch: Any, batch_idx: int) -> None:
            self.log("test_margin", self(batch[0]).max(1).values.mean())

    trainers = [make_trainer(None) for _ in range(2)]
    for trainer, module in zip(trainers, (Also(), Client()), strict=True):
        trainer.prepare(module, TinyData())
    also, ours = (trainer.evaluate() for trainer in trainers)
    assert also.keys() - ours.keys() == {"test/margin"} and ours.items() <= also.items()


# The page about hooks ----------------------------------------------------------------------------------------------------------


def test_the_page_lists_what_is_called() -> None:
    page = (ROOT / "docs" / "lightning.md").read_text()
    rows = dict(re.findall(r"^\| `([\w.]+)` \| (\w+)", page, re.MULTILINE))
    expected: dict[str, str] = {}
    for base, called in (
        (
            L.LightningModule,
            (CALLED | CALLED_BY_FIT | CALLED_IN_CLIENTS | CALLED_WITHOUT_DATA).union(*CALLED_TO_EVALUATE.values()),
        ),
        (L.LightningDataModule, CALLED_ON_DATA | CALLED_WITHOUT_DATA),
        (L.Callback, set(lightning_hooks(L.Callback))),
    ):
        for name in lightning_hooks(base):
            expected[f"{base.__name__}.{name}"] = "called" if name in called else "ignored"
    assert rows == expected


# What a training_step may ask, and return -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("base", [Plain, Client])
def test_rounds_are_epochs_and_steps_are_numbered(base: type) -> None:
    seen: list[tuple[int, int]] = []

    class Asking(base):  # type: ignore[misc]
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            seen.append((self.current_epoch, batch_idx))
            return super().training_step(batch, batch_idx)

    train(module=Asking(), clients_per_round=1, rounds=2, local_steps=3)
    assert seen == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]
    seen.clear()
    train(FedSAM(), module=Asking(), clients_per_round=1, rounds=1, local_steps=2)
    assert seen == [(0, 0), (0, 0), (0, 1), (0, 1)]


def test_a_step_without_a_number_and_a_loss_in_a_dictionary() -> None:
    class Short(Plain):
        def training_step(self, batch: Any) -> Any:  # type: ignore[override]
            return {"loss": F.cross_entropy(self(batch[0]), batch[1])[None], "other": 1}

        def test_step(self, batch: Any) -> Any:  # type: ignore[override]
            return super().test_step(batch, 0)

    assert_close(train(module=Short()).params, train(module=Plain()).params, rtol=0)
    trainer = make_trainer(None)
    trainer.prepare(Short(), TinyData())
    assert trainer.evaluate().keys() == {"test/accuracy"}


@pytest.mark.parametrize(
    ("result", "got"),
    [(lambda loss: None, "None"), (lambda loss: 3.0, "3.0"), (lambda loss: loss[None].repeat(2), r"shape \(2,\)")],
)
def test_a_training_step_returns_the_loss(result: Callable[[Tensor], Any], got: str) -> None:
    class Odd(Plain):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return result(super().training_step(batch, batch_idx))

    with pytest.raises(ValueError, match=rf"^Odd.training_step must return the loss, .*got .*{got}"):
        train(module=Odd())


@pytest.mark.parametrize("name", ["global_step", "optimizers", "trainer"])
def test_there_is_no_trainer_to_ask(name: str) -> None:
    class Asking(Plain):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            value = getattr(self, name)
            _ = value.max_epochs if name == "trainer" else value() if callable(value) else value
            return super().training_step(batch, batch_idx)

    with pytest.raises(ValueError, match=r"there is no lightning.Trainer in federated training: self.current_epoch is the round"):
        train(module=Asking())


# What is refused ------------------------------------------------------------------------------------------------------------------


def test_what_is_no_module_or_no_data_is_refused() -> None:
    class Empty(L.LightningModule):
        pass

    for model, data, message in (
        (len, TinyData(), r"the model must be a network, a flcog.ClientModule, .*; got builtin_function_or_method$"),
        (Empty(), TinyData(), r"Empty has no training_step"),
        (Plain(), L.LightningDataModule(), r"LightningDataModule has no train_dataloader: write one"),
    ):
        with pytest.raises(ValueError, match=message):
            make_trainer(None).prepare(model, data)  # type: ignore[arg-type]


def test_layers_may_be_made_in_configure_model() -> None:
    class Late(Plain):
        def __init__(self) -> None:
            super().__init__()
            del self.net

        def configure_model(self) -> None:
            if not hasattr(self, "net"):
                self.net = MLP(NUM_FEATURES, (8,), NUM_CLASSES)

    runs = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        runs.append(train(module=Late()))
    assert_close(runs[0].params, runs[1].params, rtol=0)
