"""Features of a LightningModule in the faithful step, compared with a closed form or Lightning's trainer, or refused with a message."""

import re
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from datamodules.common import one_line
from harness import TinyData, assert_close, classifier, distance, fit, make_trainer, needs_compiler, train
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

import flcog
from engine.test_faithful_step import ONE_CLIENT, Gan, Lit, by_lightning, recording
from flcog.callbacks import (
    SCAFFOLD,
    ClipUpdate,
    Ditto,
    EqualWeights,
    FedAvgM,
    FedDC,
    FedDisco,
    FedExP,
    FedProx,
    FedPVR,
    FedSAM,
    LowPrecision,
)
from flcog.execute.faithful_client import FaithfulClient
from flcog.hosting import host_clients
from flcog.server import round as rounds


class Plain(Lit):
    """The same module without a scheduler, so that the pure step can train it."""

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def is_faithful(trainer: Any) -> bool:
    return isinstance(trainer.executor.placement.trainer, FaithfulClient)


# Manual optimisation --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "method",
    [FedAvgM(), FedExP(), FedDisco(), EqualWeights(), ClipUpdate(0.01), LowPrecision()],
    ids=lambda method: method.name,
)
def test_methods_that_act_on_models_take_manual_optimisation(method: flcog.Method) -> None:
    plain, changed = train(module=Gan(), precision="32-true"), train(method, module=Gan(), precision="32-true")  # type: ignore[arg-type]
    assert "one client at a time: Gan has automatic_optimization = False" in plain.notes[0]
    # FedExP's step may be equal to FedAvg's, and LowPrecision does not change small tensors.
    assert distance(plain.params, changed.params) > 1e-7 or isinstance(method, FedExP | LowPrecision)
    assert plain.rows[-1]["train/loss"] != 0


@pytest.mark.parametrize("method", [FedProx(), SCAFFOLD(), FedSAM()], ids=lambda method: method.name)
def test_methods_that_change_a_step_refuse_it(method: flcog.Method) -> None:
    message = (
        f"{method.name} changes the loss or the gradient of a step, and Gan takes its steps itself .*: remove {method.name}, or"
    )
    with one_line(ValueError, message):
        train(method, module=Gan())  # type: ignore[arg-type]
    with one_line(ValueError, "trainer.gradient_clip_val changes the loss .* or call self.clip_gradients in training_step"):
        train(module=Gan(), gradient_clip_val=1.0)  # type: ignore[arg-type]


def test_a_method_that_trains_on_the_loss_refuses_it() -> None:
    class Manual(Plain):
        def __init__(self) -> None:
            super().__init__()
            self.automatic_optimization = False

    class Unmarked(Ditto):
        """A user's method that does not declare that it differentiates the loss, and therefore fails only in its first step."""

        differentiates_loss = False

    with one_line(
        ValueError, r"Manual takes its steps itself .*, and a method of this run differentiates its loss: remove the method"
    ):
        train(Unmarked(), module=Manual())  # type: ignore[arg-type]
    with one_line(ValueError, "Ditto differentiates the loss or the gradient of a step, and Manual takes its steps itself"):
        make_trainer(None, Ditto()).prepare(Manual(), TinyData())  # before round 1


@dataclass(frozen=True)
class Measures(flcog.Method):
    """Sends the mean loss over the client's samples at the trained weights."""

    over_data = staticmethod(lambda apply, params, batch: {"loss": apply.frozen(params, apply.buffers).loss(batch)})

    def finish_client(self, delta: Any, params: Any, ctx: Any) -> flcog.Upload:
        return flcog.Upload(delta, ctx.state, mean={"loss": ctx.data.mean["loss"]})

    def server_step(self, server: Any, params: Any, delta: Any, messages: Any, cohort: Any) -> Any:
        cohort.log("measured", messages.mean["loss"])
        return delta, server


def test_a_method_may_ask_for_the_loss_of_a_manual_module() -> None:
    """The method gets the loss at the trained weights, and asking for it changes no weights. FedWalk's clients send this loss."""
    one: dict[str, Any] = {"clients_per_round": 1, "rounds": 1}
    trainer, plain = train(Measures(), module=Gan(), **one), train(module=Gan(), **one)  # type: ignore[arg-type]
    assert_close(trainer.params, plain.params, 0)
    client = trainer.works[0][0].client
    rows = trainer.federation.partition.client(client)
    inputs, module = trainer.federation.train.inputs[rows].double(), Gan().double()
    module.load_state_dict(trainer.params)
    fake = module.critic(module.generator(inputs[:, :2])).mean()
    expected = -fake + fake + module.critic(inputs).square().mean()
    assert trainer.rows[0]["measured"] == pytest.approx(float(expected))


@pytest.mark.parametrize(("when", "warns"), [("last", True), ("first", False), ("every", False), ("never", False)])
def test_a_scheduler_that_only_the_last_step_advances_changes_no_rate(when: str, warns: bool) -> None:
    class Steps(Plain):
        def __init__(self) -> None:
            super().__init__()
            self.automatic_optimization, self.rates = False, list[float]()

        def training_step(self, batch: Any, batch_idx: int) -> None:
            optimizer = self.optimizers()
            self.rates.append(optimizer.param_groups[0]["lr"])  # type: ignore[union-attr]
            self.manual_backward(super().training_step(batch, batch_idx)["loss"])
            optimizer.step()  # type: ignore[union-attr,call-arg]
            if {"last": self.trainer.is_last_batch, "first": batch_idx == 0, "every": True, "never": False}[when]:
                self.lr_schedulers().step()  # type: ignore[union-attr,call-arg]

        def configure_optimizers(self) -> Any:
            optimizer = super().configure_optimizers()
            return [optimizer], [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)]

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        train(module=(module := Steps()), rounds=2, local_steps=3, clients_per_round=2)  # type: ignore[arg-type]
    rates = {"first": [0.1, 0.05, 0.05], "every": [0.1, 0.05, 0.025]}.get(when, [0.1] * 3)
    assert module.rates[-12:] == pytest.approx(rates * 4)  # two rounds of two clients
    found = [str(warning.message) for warning in caught if "advances a learning-rate scheduler" in str(warning.message)]
    assert len(found) == warns and all("Steps " in text and "on_train_epoch_end instead" in text for text in found)


def test_a_manual_run_resumes(tmp_path: Path) -> None:
    whole = fit(tmp_path, module=Gan(), rounds=3)  # type: ignore[arg-type]
    half = fit(tmp_path, module=Gan(), rounds=2)  # type: ignore[arg-type]
    resumed = fit(tmp_path, module=Gan(), rounds=3, ckpt_path=str(half.run_dir))  # type: ignore[arg-type]
    assert all(torch.equal(resumed.params[name], value) for name, value in whole.params.items())


# Hooks ----------------------------------------------------------------------------------------------------------------------------


def test_a_wrapped_gradient_calls_the_backward_hooks_for_each_pass() -> None:
    """FedSAM computes two gradients in a step."""
    calls: list[str] = []
    train(FedSAM(), module=recording(Lit, calls), **ONE_CLIENT)  # type: ignore[arg-type]
    counts = {
        name: calls.count(name) for name in ("on_before_zero_grad", "on_before_backward", "on_after_backward", "optimizer_step")
    }
    assert counts == {"on_before_zero_grad": 5, "on_before_backward": 10, "on_after_backward": 10, "optimizer_step": 5}


def test_on_train_batch_start_may_end_a_clients_training() -> None:
    class Short(Plain):
        def on_train_batch_start(self, batch: Any, batch_idx: int) -> Any:
            return -1 if batch_idx == 2 else None

    short = train(module=Short(), local_steps=4)  # type: ignore[arg-type]
    calls: list[str] = []
    train(module=recording(Short, calls), **ONE_CLIENT)  # type: ignore[arg-type]
    assert calls.count("on_train_batch_start") == 3 and calls.count("on_train_batch_end") == 2
    assert short.rows[-1]["train/loss"] > 0


@pytest.mark.parametrize(("last", "options"), [(0, {}), (1, {"accumulate_grad_batches": 2})])
def test_a_client_takes_at_least_one_step(last: int, options: dict[str, Any]) -> None:
    class Ends(Plain):
        def on_train_batch_start(self, batch: Any, batch_idx: int) -> Any:
            return -1 if self.current_epoch == 1 and batch_idx == last else None

    message = (
        "Ends.on_train_batch_start returned -1 before the end of the client's first step: return it .* whose plan returns None"
    )
    with pytest.raises(ValueError, match=message) as caught:
        train(module=Ends(), **options)  # type: ignore[arg-type]
    (note,) = caught.value.__notes__
    assert re.fullmatch(r"in client \d, round 2, local step 1 of 4", note)


def test_a_step_without_a_loss_changes_nothing() -> None:
    class Seldom(Plain):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return super().training_step(batch, batch_idx) if batch_idx == 0 else None

        def on_after_backward(self) -> None:
            pass

    class First(Plain):
        def on_train_batch_start(self, batch: Any, batch_idx: int) -> Any:
            return -1 if batch_idx else None

    seldom, first = (train(module=kind(), **ONE_CLIENT) for kind in (Seldom, First))  # type: ignore[arg-type]
    assert_close(seldom.params, first.params, 0)
    assert seldom.rows[-1]["train/loss"] == first.rows[-1]["train/loss"]


class Doubled(TinyData):
    """Doubles the inputs in a hook, and records the trainer's stage."""

    stages: set[str]

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        stages = [stage for stage in ("training", "validating", "testing") if getattr(self.trainer, stage)]
        self.stages = getattr(self, "stages", set()) | set(stages)
        return 2 * batch[0], batch[1]


class Twice(TinyData):
    """Stores the doubled inputs."""

    def load(self) -> flcog.Splits:
        splits = super().load()
        for part in (splits.train, splits.test):
            assert part is not None
            object.__setattr__(part, "inputs", 2 * part.inputs)
        return splits


def test_hooks_of_batches_act_in_training_and_evaluation() -> None:
    runs = []
    for data in (Doubled(), Twice()):
        trainer = make_trainer(None, FedProx())
        trainer.prepare(classifier(), data)
        trainer.train_round()
        runs.append((trainer, trainer.evaluate()))
    (hooked, figures), (direct, expected) = runs
    assert_close(hooked.params, direct.params, 0)
    assert figures == expected and is_faithful(hooked) and not is_faithful(direct)
    assert "one client at a time: Doubled.on_after_batch_transfer" in hooked.notes[0]
    assert hooked.run.engine.clients.here.executor is not None


def test_hooks_of_a_wrapped_data_module_act() -> None:
    class Data(L.LightningDataModule):
        calls = 0

        def train_dataloader(self) -> Any:
            return DataLoader(TensorDataset(torch.randn(40, 6), torch.arange(40) % 3), batch_size=4)

        def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
            self.calls += 1
            assert self.trainer is not None and self.trainer.training
            return batch

    data = Data()
    trainer = train(module=Plain(), data=data, **ONE_CLIENT | {"local_steps": 2, "precision": "32-true"})  # type: ignore[arg-type]
    assert data.calls == 2 and "Data.on_after_batch_transfer" in " ".join(trainer.notes)


def test_a_callback_may_end_the_run(tmp_path: Path) -> None:
    class Stops(L.Callback):
        def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            assert outputs["loss"].ndim == 0 and len(batch) == 2
            trainer.should_stop = trainer.current_epoch == 1

    assert len(fit(tmp_path, Stops(), rounds=5).history) == 2


def test_an_error_in_a_callback_names_the_hook_and_the_step() -> None:
    class Fails(L.Callback):
        def on_before_backward(self, trainer: Any, pl_module: Any, loss: Tensor) -> None:
            raise RuntimeError("of the user's")

    with pytest.raises(RuntimeError, match="of the user's") as caught:
        train(Fails())
    assert "in Fails.on_before_backward" in caught.value.__notes__
    assert any("local step 1 of 4" in note for note in caught.value.__notes__)


def test_hooks_and_callbacks_may_log() -> None:
    """Each value becomes a column: its mean over the steps of all clients, whose weights are equal here."""

    class Logs(flcog.Classifier):
        def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
            self.log("number", float(batch_idx))

    class Watch(L.Callback):
        def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
            pl_module.log("seen", 10.0 * batch_idx)

    row = train(Watch(), EqualWeights(), module=Logs(classifier().model), rounds=1).rows[0]
    assert (row["train/number"], row["train/seen"]) == pytest.approx((1.5, 15.0))


def test_gradients_may_be_clipped_by_the_module() -> None:
    """The module's hook gets the values of the trainer's options, and the gradients are not clipped a second time."""

    class Clips(Plain):
        def configure_gradient_clipping(
            self, optimizer: Any, gradient_clip_val: float | None = None, gradient_clip_algorithm: str | None = None
        ) -> None:
            assert (gradient_clip_val, gradient_clip_algorithm) == (0.01, "value")
            self.clip_gradients(optimizer, gradient_clip_val, gradient_clip_algorithm)

    options: dict[str, Any] = {"gradient_clip_val": 0.01, "gradient_clip_algorithm": "value"}
    runs = [train(module=kind(), **options) for kind in (Clips, Plain)]
    assert_close(runs[0].params, runs[1].params, 0)
    assert distance(runs[0].params, train(module=Plain()).params) > 1e-3  # type: ignore[arg-type]


def test_parameters_may_be_replaced_within_a_client() -> None:
    class Halves(Plain):
        new = False

        def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
            layer = self.net.head
            with torch.no_grad():
                if self.new:
                    layer.weight = torch.nn.Parameter(layer.weight / 2)
                else:
                    layer.weight.div_(2)

    class Renews(Halves):
        new = True

    runs = [train(module=kind()) for kind in (Halves, Renews)]  # type: ignore[arg-type]
    assert_close(runs[0].params, runs[1].params, 0)
    assert distance(runs[0].params, train(module=Plain()).params) > 1e-2  # type: ignore[arg-type]


@pytest.mark.parametrize("hook", ["on_test_epoch_end", "on_test_batch_end", "on_train_epoch_end"])
def test_the_global_weights_may_not_be_changed(hook: str, tmp_path: Path) -> None:
    def changes(self: Any, *args: Any) -> None:
        with torch.no_grad():
            self.net.head.weight.div_(2)

    kind = type("Changes", (Plain,), {hook: changes, "test_step": lambda self, batch, batch_idx: None})
    with one_line(ValueError, f"Changes.{hook} changes the parameter net.head.weight of the global model, which only the server"):
        fit(tmp_path, module=kind(), rounds=1, eval_every=1)


def test_callbacks_get_the_batches_of_evaluations(tmp_path: Path) -> None:
    class Watches(L.Callback):
        def __init__(self) -> None:
            self.seen: list[str] = []

    def noting(name: str) -> Any:
        def hook(self: Watches, trainer: Any, pl_module: Any, *args: Any) -> None:
            assert trainer.current_epoch == 0 and not pl_module.training
            self.seen.append(name)

        return hook

    names = (
        "on_test_start",
        "on_test_epoch_start",
        "on_test_batch_start",
        "on_test_batch_end",
        "on_test_epoch_end",
        "on_test_end",
    )
    for name in names:
        setattr(Watches, name, noting(name))
    tested = type("Tested", (Plain,), {"test_step": lambda self, batch, batch_idx: {"rows": len(batch[1])}})
    watches = Watches()
    fit(tmp_path, watches, module=tested(), data=TinyData(eval_batch_size=15), rounds=1, eval_every=1)
    assert watches.seen == [*names[:2], *2 * names[2:4], *names[4:]]


def test_callbacks_get_the_batches_of_a_module_without_steps_of_its_own(tmp_path: Path) -> None:
    """The hooks run in Lightning's order, also in the sanity check before round 1, and change no figure."""
    names = [f"on_validation_{name}" for name in ("start", "epoch_start", "batch_start", "batch_end", "epoch_end", "end")]
    seen: list[Any] = []

    def noting(name: str) -> Any:
        def hook(self: Any, trainer: Any, pl_module: Any, *args: Any) -> None:
            seen.append((name, trainer.sanity_checking, trainer.validating))
            if name == "on_validation_batch_end":
                loss, (inputs, targets), _ = args
                outputs = pl_module(inputs).float()
                assert_close({"loss": loss}, {"loss": torch.nn.functional.cross_entropy(outputs, targets)}, 1e-6)

        return hook

    watches = type("Watches", (L.Callback,), {name: noting(name) for name in names})()
    options: Any = {"rounds": 1, "eval_every": 1, "num_sanity_val_steps": 1}
    rows = [
        fit(tmp_path / str(len(callbacks)), *callbacks, data=TinyData(eval_batch_size=15, client_val=0.4), **options).history
        for callbacks in ([watches], [])
    ]
    batches = names[2:4] * ((len(seen) - 10) // 2)
    assert [name for name, _, _ in seen] == [*names, *names[:2], *batches, *names[4:]]
    assert all(sanity != validating for _, sanity, validating in seen) and all(sanity for _, sanity, _ in seen[:6])
    with_hooks, without = ({name: value for name, value in row.items() if "time" not in name} for (row,) in rows)
    assert with_hooks == without and "val/loss" in without


# The trainer ----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("read", ["self.global_step", "self.trainer.max_epochs", "self.optimizers().param_groups[0]['lr']"])
def test_a_step_may_read_its_trainer(read: str, tmp_path: Path) -> None:
    scope: dict[str, Any] = {"Plain": Plain, "seen": []}
    source = (
        f"class Reads(Plain):\n def training_step(self, batch, batch_idx):\n  seen.append({read})\n  return self.helped(batch)\n"
    )
    exec(source + " def helped(self, batch):\n  return super().training_step(batch, 0)\n", scope)
    trainer = train(module=scope["Reads"](), **ONE_CLIENT | {"rounds": 2})
    values = {"self.global_step": [*range(5), *range(5)], "self.trainer.max_epochs": [2] * 10}
    assert scope["seen"] == values.get(read, [0.1] * 10)
    assert f"one client at a time: Reads.training_step reads {read.partition('(')[0]}" in trainer.notes[0]
    assert_close(trainer.params, train(module=Plain(), **ONE_CLIENT | {"rounds": 2}).params, 0)  # type: ignore[arg-type]


def test_a_step_that_reads_no_more_than_the_round_is_pure() -> None:
    seen: list[Any] = []

    class Reads(Plain):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            seen.append((self.trainer.training, self.trainer.current_epoch, self.trainer.logger))
            return super().training_step(batch, batch_idx)

    assert not is_faithful(train(module=Reads(), rounds=1))  # type: ignore[arg-type]
    assert set(seen) == {(True, 0, None)}


def test_an_optimizer_may_ask_for_the_loss_again() -> None:
    class Again(Lit):
        def configure_optimizers(self) -> Any:
            return torch.optim.LBFGS(self.parameters(), lr=0.1, max_iter=3)

    ours = train(module=Again(), **ONE_CLIENT)  # type: ignore[arg-type]
    theirs = by_lightning(Again(), ours)
    assert_close(ours.params, {name: p.detach() for name, p in theirs.named_parameters()}, 1e-12)


class Warms(Plain):
    """Changes the learning rate by hand, as in Lightning's documentation."""

    def optimizer_step(self, epoch: int, batch_idx: int, optimizer: Any, optimizer_closure: Any = None) -> None:
        for group in optimizer.param_groups:
            group["lr"] *= 0.5
        optimizer.step(closure=optimizer_closure)


class Scheduled(Plain):
    """Changes the learning rate in the same way by a scheduler."""

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5 ** (step + 1))
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]


@pytest.mark.parametrize("method", [SCAFFOLD(), FedDC(alpha=0.0), FedPVR("net")], ids=lambda method: method.name)
@pytest.mark.parametrize("kind", [Scheduled, Warms])
def test_control_variates_are_means_weighted_by_the_rates_of_steps(kind: type[Plain], method: flcog.Method) -> None:
    """In the first round, they are the means of plain gradients."""
    total: dict[str, Tensor] = {}

    class Sums(kind):  # type: ignore[misc,valid-type]
        def on_after_backward(self) -> None:
            for name, parameter in self.named_parameters():
                rate = 0.1 * 0.5 ** (self.global_step + 1)
                total[name] = total.get(name, 0) + rate * parameter.grad

    trainer = train(method, module=Sums(), **ONE_CLIENT)
    (states,) = trainer.states.by_client.values()
    expected = {name: value / sum(0.1 * 0.5 ** (step + 1) for step in range(5)) for name, value in total.items()}
    assert_close(states[method.name]["g" if isinstance(method, FedDC) else "c"], expected, 1e-12)


@pytest.mark.parametrize("kind", [Scheduled, Warms])
def test_a_personal_model_takes_the_rates_of_steps(kind: type[Plain]) -> None:
    """Without a pull to the global model, it takes the client's own steps."""
    trainer = train(Ditto(lambda_prox=0.0), module=kind(), **ONE_CLIENT)  # type: ignore[arg-type]
    (states,) = trainer.states.by_client.values()
    assert_close(states["Ditto"]["personal"], trainer.params, 1e-12)


class Unused(Plain):
    """Has a layer on which the loss does not depend, and weight decay."""

    def __init__(self) -> None:
        super().__init__()
        self.unused = torch.nn.Linear(2, 2)

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters(), lr=0.1, weight_decay=0.5)

    def on_after_backward(self) -> None:
        pass


@dataclass(frozen=True)
class Pushes(flcog.Method):
    """Gives the gradient of one parameter a value."""

    def correct_gradient(self, gradient: Any, params: Any, ctx: Any) -> Any:
        return gradient | {"unused.bias": gradient["unused.bias"] + 1}


@pytest.mark.parametrize("accumulate", [1, 2])
def test_weight_decay_passes_over_parameters_without_a_gradient_as_in_lightning(accumulate: int) -> None:
    ours = train(module=Unused(), accumulate_grad_batches=accumulate, **ONE_CLIENT)  # type: ignore[arg-type]
    theirs = by_lightning(Unused(), ours, accumulate_grad_batches=accumulate)
    assert_close(ours.params, {name: p.detach() for name, p in theirs.named_parameters()}, 1e-12)


@pytest.mark.parametrize("method", [SCAFFOLD(), FedSAM(), Pushes()], ids=lambda method: method.name)
@pytest.mark.parametrize("accumulate", [1, 2])
def test_methods_leave_parameters_without_a_gradient_or_give_them_one(method: flcog.Method, accumulate: int) -> None:
    options: dict[str, Any] = {"accumulate_grad_batches": accumulate, "gradient_clip_val": 1.0}
    trainer, start = train(method, module=Unused(), **ONE_CLIENT | options), dict(Unused().double().named_parameters())
    moved = {name for name, value in start.items() if "unused" in name and not torch.equal(trainer.params[name], value)}
    assert moved == ({"unused.bias"} if isinstance(method, Pushes) else set())


def test_changes_of_an_optimizer_end_with_the_client() -> None:
    runs = [train(module=kind()) for kind in (Warms, Scheduled)]  # type: ignore[arg-type]
    assert_close(runs[0].params, runs[1].params, 1e-14)


@pytest.mark.parametrize("options", [{"local_steps": 3}, {"local_steps": None, "local_epochs": 2.0}])
def test_a_module_knows_the_number_of_steps_before_the_first_round(options: dict[str, Any]) -> None:
    """OneCycleLR needs this number, and refuses further steps."""
    seen: list[Any] = []
    of_clients: list[int] = []

    class Knows(Plain):
        def configure_optimizers(self) -> Any:
            optimizer, trainer = torch.optim.SGD(self.parameters(), lr=0.1), self.trainer
            numbers = trainer.num_training_batches, trainer.estimated_stepping_batches
            seen.append((*numbers, trainer.max_epochs, trainer.world_size, type(trainer.datamodule)))
            cycle = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=trainer.estimated_stepping_batches)
            return [optimizer], [{"scheduler": cycle, "interval": "step"}]

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            of_clients.append(int(self.trainer.estimated_stepping_batches))
            return super().training_step(batch, batch_idx)

        def setup(self, stage: str) -> None:
            assert self.trainer.log_dir == self.trainer.default_root_dir == "None"  # train_round writes no files
            with pytest.raises(AttributeError, match="asked its trainer for 'callback_metrics' before round 1"):
                self.trainer.callback_metrics  # noqa: B018

    trainer = make_trainer(None, rounds=2, clients_per_round=8, **options)
    trainer.prepare(module := Knows(), TinyData())
    trainer.train_round()
    assert seen[0] == (max(of_clients), max(of_clients), 2, 1, TinyData) and module._trainer is None
    assert len(set(of_clients)) == (1 if options["local_steps"] else 4)


def test_a_module_knows_the_runs_directory_before_the_first_round(tmp_path: Path) -> None:
    seen: set[str] = set()

    class Knows(Plain):
        def setup(self, stage: str) -> None:
            seen.update((self.trainer.default_root_dir, self.trainer.log_dir))

        def configure_optimizers(self) -> Any:
            seen.add(self.trainer.log_dir)
            return super().configure_optimizers()

        def on_train_start(self) -> None:
            seen.add(self.trainer.log_dir)

    first = fit(tmp_path, module=Knows(), rounds=1)  # type: ignore[arg-type]
    assert seen == {str(tmp_path), str(first.run.directory)} and list(tmp_path.iterdir()) == [first.run.directory]
    fit(tmp_path, module=Knows(), rounds=2, ckpt_path="last", resume_changed=True)  # type: ignore[arg-type]
    assert len(seen) == 2


@pytest.mark.parametrize(
    "options",
    [{"executor": "vmap"}, {"chunk_size": 2}, {"executor": "fastest"}, pytest.param({"compile": True}, marks=needs_compiler)],
)
def test_it_runs_one_client_at_a_time_whatever_is_asked(options: dict[str, Any]) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer = train(module=Lit(), rounds=1, **{"executor": "auto"} | options)  # type: ignore[arg-type]
    reason = "one client at a time: Lit.configure_optimizers returns a scheduler with the interval step"
    assert is_faithful(trainer) and reason in trainer.notes[0]
    explained = [str(warning.message) for warning in caught if reason in str(warning.message)]
    assert len(explained) == (1 if "compile" in options or options.get("executor") == "vmap" else 0)


def test_a_clients_process_needs_no_run() -> None:
    """The hooks of steps run in the client's process, which needs no server, run or files."""
    seen: list[tuple[int, int, Any]] = []

    class Watch(L.Callback):
        def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            seen.append((trainer.max_epochs, trainer.num_training_batches, trainer.logger))
            with pytest.raises(AttributeError, match="asked the trainer for 'callback_metrics' while a client trained"):
                trainer.callback_metrics  # noqa: B018
            with pytest.raises(ValueError, match="a client cannot end the run"):
                trainer.should_stop = True

    trainer = make_trainer(None, FedProx())
    trainer.prepare(classifier(), TinyData())
    engine, server = trainer.run.engine, trainer.run.server
    client = trainer.sample(0)[0]
    with trainer.settings.in_force():
        data = TinyData().only([client])
        runtime = host_clients(trainer.settings, trainer.methods, classifier(), data, callbacks=[Watch()])
        runtime.set_up(engine.population, {})
        ((received, tasks),) = rounds.ask(server, rounds.plan(engine, server, rounds.select(engine, server)))
        tasks = [task for task in tasks if task.client == client]
        (there,) = runtime.train(received, tasks)
        (here,) = engine.clients.train(received, tasks)
    assert seen == [(3, 4, None)] * 4
    assert all(torch.equal(there.envelope.delta[name], value) for name, value in here.envelope.delta.items())
