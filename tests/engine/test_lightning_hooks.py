"""Whatever hook of Lightning's a user writes is called, or refused, or named once: none is passed over in silence."""

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import lightning as L
import pytest
import torch
import torch.nn.functional as F
from harness import NUM_CLASSES, NUM_FEATURES, TinyData, assert_close, classifier, make_trainer, train
from torch import Tensor, nn

import flcog
from flcog.callbacks import MOON, SCAFFOLD, Ditto, FedSAM, FineTune
from flcog.engine.lightning_hooks import CALLED, CALLED_ON_DATA, REFUSED, lightning_hooks
from flcog.models import MLP


class Plain(L.LightningModule):
    """A user's own module."""

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


class Client(flcog.Classifier):
    """A client of ours."""

    def __init__(self) -> None:
        super().__init__(network(), optimizer=partial(torch.optim.SGD, lr=0.1))


def with_hook(base: type, name: str, calls: list[str]) -> Any:
    """A subclass of the user's that has this hook of its own."""

    def hook(self: Any, *args: Any, **kwargs: Any) -> Any:
        calls.append(name)
        return getattr(super(cls, self), name)(*args, **kwargs)

    if name == "training_step":
        hook = lambda self, batch, batch_idx: (calls.append(name), super(cls, self).training_step(batch, batch_idx))[1]  # noqa: E731
    cls = type("Mine", (base,), {name: hook})
    return cls()


def fate(model: Any, data: Any, calls: list[str]) -> str:
    """What becomes of a hook: called, refused, or named by the only warning."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            trainer = make_trainer(None, rounds=1, local_steps=1, eval_every=1)
            trainer.prepare(model, data)
            trainer.train_round()
            trainer.evaluate()
        except ValueError as error:
            return f"refused: {error}"
    told = [str(warning.message) for warning in caught if "hooks of Lightning's" in str(warning.message)]
    assert len(told) <= 1
    return "called" if calls and not told else told[0] if told and not calls else f"in silence: {calls} {told}"


@pytest.mark.parametrize("base", [Plain, Client])
@pytest.mark.parametrize("name", lightning_hooks(L.LightningModule))
def test_every_hook_of_a_module(name: str, base: type) -> None:
    calls: list[str] = []
    result = fate(with_hook(base, name, calls), TinyData(), calls)
    if name in REFUSED:
        assert result.startswith(f"refused: Mine.{name} would never be called in federated training: ")
    elif name in (CALLED | {"test_step"} if base is Plain else CALLED) - {"log", "log_dict"}:
        assert result == "called"
    elif name not in ("log", "log_dict"):
        assert f"never called in federated training: Mine.{name} (" in result


@pytest.mark.parametrize("name", lightning_hooks(flcog.FederatedDataModule))
def test_every_hook_of_a_data_module(name: str) -> None:
    calls: list[str] = []
    result = fate(Plain(), with_hook(TinyData, name, calls), calls)
    if name in REFUSED:
        assert result.startswith(f"refused: Mine.{name} would never be called in federated training: ")
    elif name in CALLED_ON_DATA:
        assert result == "called"
    else:
        assert f"never called in federated training: Mine.{name} (" in result


def test_hooks_are_named_together() -> None:
    class Watching(Client):
        def on_train_batch_end(self, *args: Any) -> None:
            pass

        def validation_step(self, *args: Any) -> None:
            pass

    model = Watching()
    model.on_train_start = lambda: None  # type: ignore[method-assign]
    with pytest.warns(
        UserWarning, match=r"Watching.on_train_batch_end, Watching.on_train_start, Watching.validation_step \("
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
    """Smooths labels as a Lightning user would write it."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return smoothed(self(batch[0]), batch[1], "mean")


class OwnLoss(Client):
    """The same in our terms."""

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


def test_it_runs_one_client_at_a_time_and_says_why() -> None:
    with pytest.warns(UserWarning, match="executor=vmap falls back to loop: OwnStep has a training_step of its own"):
        forced = train(module=OwnStep(), executor="vmap")
    chosen = make_trainer(None, executor="auto")
    chosen.prepare(OwnStep(), TinyData())
    assert chosen.notes == ["executor: loop (OwnStep has a training_step of its own (per_example_loss could be vectorised))"]
    assert_close(forced.params, train(module=OwnStep()).params, rtol=0)


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


def test_what_is_logged_in_training_is_said_to_be_lost_once() -> None:
    class Logging(Client):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            loss = super().training_step(batch, batch_idx)
            self.log("my_loss", loss)
            self.log_dict({"other": 1.0})
            return loss

    with pytest.warns(UserWarning, match=r"what Logging.training_step logs is not kept \(my_loss, other\)") as told:
        train(module=Logging())
    assert len(told) == 1


# What is refused ------------------------------------------------------------------------------------------------------------------


def test_manual_optimisation_is_refused() -> None:
    model = Plain()
    model.automatic_optimization = False
    with pytest.raises(ValueError, match=r"^Plain has automatic_optimization = False, and clients are trained by the loss .*"):
        make_trainer(None).prepare(model, TinyData())


def test_what_is_no_module_or_no_data_is_refused() -> None:
    class Empty(L.LightningModule):
        pass

    for model, data, message in (
        (nn.Linear(2, 2), TinyData(), r"a client is a flcog.ClientModule, .*; got Linear$"),
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
