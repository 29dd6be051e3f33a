"""Lightning's callbacks, and the module's hooks of whole epochs, in a federated run."""

from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from datamodules.common import one_line
from engine.test_lightning_hooks import Both, Plain
from harness import TinyData, classifier, fit, make_trainer
from lightning.pytorch import callbacks as lightning_callbacks
from lightning.pytorch.loggers import CSVLogger
from torch import Tensor, nn

import flcog
from flcog.client.lightning_hooks import lightning_hooks

OPTIONS: dict[str, Any] = {"eval_every": 1, "rounds": 3, "local_steps": 1, "precision": "32-true"}


def tracked(root: Path, callback: L.Callback, module: Any = None) -> flcog.FederatedTrainer:
    """A run with a tracker, which some callbacks need."""
    trainer = make_trainer(root, callback, **OPTIONS)
    trainer.logger = CSVLogger(str(root / "csv"))
    trainer.fit(module or classifier(), TinyData())
    return trainer


class Recorder(L.Callback):
    """Records its hooks with the round and the progress that it sees, and keeps a count."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, int, int]] = []
        self.epochs = 0

    def state_dict(self) -> dict[str, Any]:
        return {"epochs": self.epochs}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.epochs = state["epochs"]

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        self.epochs += 1
        self.seen.append(("on_train_epoch_end", trainer.current_epoch, trainer.global_step))
        pl_module.log("epochs", self.epochs)


def recording(name: str) -> Any:
    def hook(self: Recorder, trainer: Any, pl_module: Any, *args: Any, **kwargs: Any) -> None:
        assert pl_module.trainer is trainer and pl_module.current_epoch == trainer.current_epoch
        self.seen.append((name, trainer.current_epoch, trainer.global_step))

    return hook


for _name in ("setup", "on_fit_start", "on_train_start", "on_train_epoch_start", "on_validation_start", "on_validation_end"):
    setattr(Recorder, _name, recording(_name))
for _name in ("on_train_end", "on_fit_end", "teardown"):
    setattr(Recorder, _name, recording(_name))


def test_the_order_of_hooks(tmp_path: Path) -> None:
    recorder = Recorder()
    trainer = fit(tmp_path, recorder, **OPTIONS | {"rounds": 2})
    one_round = ["on_train_epoch_start", "on_validation_start", "on_validation_end", "on_train_epoch_end"]
    expected = [(name, 0, 0) for name in ("setup", "on_fit_start", "on_train_start")]
    for round in range(2):
        expected += [(name, round, round + (name != "on_train_epoch_start")) for name in one_round]
    assert recorder.seen == [*expected, *[(name, 2, 2) for name in ("on_train_end", "on_fit_end", "teardown")]]
    assert [row["epochs"] for row in trainer.history] == [1, 2]


def test_a_callback_with_a_state_resumes(tmp_path: Path) -> None:
    first = fit(tmp_path, Recorder(), **OPTIONS | {"rounds": 2})
    recorder = Recorder()
    fit(tmp_path, recorder, ckpt_path=str(first.run_dir), **OPTIONS)  # type: ignore[arg-type]
    assert recorder.epochs == 3 and recorder.seen[0] == ("setup", 2, 2)


def test_a_callbacks_own_entries_of_a_checkpoint(tmp_path: Path) -> None:
    class Notes(L.Callback):
        seen: Any = None

        def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
            checkpoint["notes"] = {"done": trainer.global_step, "kinds": {type(pl_module).__name__: checkpoint["round"]}}

        def on_load_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
            self.seen = checkpoint["notes"]

    first = fit(tmp_path, Notes(), **OPTIONS | {"rounds": 2})  # type: ignore[arg-type]
    resumed = Notes()
    fit(tmp_path, resumed, ckpt_path=str(first.run_dir), **OPTIONS)  # type: ignore[arg-type]
    assert resumed.seen == {"done": 2, "kinds": {"Classifier": 2}}


def test_early_stopping(tmp_path: Path) -> None:
    stopping = lightning_callbacks.EarlyStopping("test_loss", stopping_threshold=1e9)
    assert len(fit(tmp_path, stopping, **OPTIONS).history) == 1
    patient = lightning_callbacks.EarlyStopping("test/loss", min_delta=1e9, patience=1)
    assert len(fit(tmp_path, patient, **OPTIONS).history) == 2


def test_model_checkpoint(tmp_path: Path) -> None:
    checkpoint = lightning_callbacks.ModelCheckpoint(monitor="test/loss", save_top_k=1, filename="round{epoch}")
    trainer = fit(tmp_path, checkpoint, **OPTIONS)
    best = min(range(3), key=lambda round: trainer.history[round]["test/loss"])
    assert Path(checkpoint.best_model_path) == trainer.run.directory / f"checkpoints/roundepoch={best}.ckpt"
    saved = torch.load(checkpoint.best_model_path, weights_only=True)
    assert saved["round"] == best + 1
    loaded = flcog.Classifier.load_from_checkpoint(checkpoint.best_model_path, model=classifier().model)
    assert all(torch.equal(value, saved["state_dict"][name]) for name, value in loaded.state_dict().items())


class Figure(Plain):
    """Logs a figure that is best after the first round and best again, but less, after the third."""

    def on_train_epoch_end(self) -> None:
        self.log("train_f", [1.0, 0.0, 0.5][self.current_epoch])


class LogsFigure(L.Callback):
    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        pl_module.log("train_f", [1.0, 0.0, 0.5][trainer.current_epoch])


@pytest.mark.parametrize("by", ["the module", "a later callback"])
def test_callbacks_that_monitor_see_what_a_rounds_end_has_logged(by: str, tmp_path: Path) -> None:
    best = lightning_callbacks.ModelCheckpoint(monitor="train_f", mode="max")
    stopping = lightning_callbacks.EarlyStopping("train_f", mode="max", patience=1)
    others, module = ([], Figure()) if by == "the module" else ([LogsFigure()], Plain())
    order: list[L.Callback] = [stopping, best, *others] if by == "the module" else [best, *others, stopping]
    trainer = fit(tmp_path, *order, module=module, **OPTIONS)
    assert len(trainer.history) == 2, "the second value is worse than the first"
    assert torch.load(best.best_model_path, weights_only=True)["round"] == 1 and best.best_model_score == 1.0
    assert trainer.callbacks[-1] is best, "checkpoints are written last"


def test_rounds_without_an_evaluation(tmp_path: Path) -> None:
    """As in Lightning, early stopping counts evaluations, and the last value of each column stays known."""
    stopping = lightning_callbacks.EarlyStopping("test_loss", min_delta=1e9, patience=1)
    seen: list[bool] = []
    watching = lightning_callbacks.LambdaCallback(
        on_train_epoch_end=lambda trainer, _: seen.append("test_loss" in trainer.callback_metrics)
    )
    trainer = fit(tmp_path, stopping, watching, **OPTIONS | {"rounds": 9, "eval_every": 2})
    assert len(trainer.history) == 4 and seen == [False, True, True, True]


def test_figures_of_a_rounds_start_are_in_its_row(tmp_path: Path) -> None:
    class Logging(L.Callback):
        def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
            pl_module.log("began", trainer.current_epoch)

    assert [row["began"] for row in fit(tmp_path, Logging(), **OPTIONS).history] == [0, 1, 2]


def test_a_second_fit_has_checkpoints_of_its_own(tmp_path: Path) -> None:
    checkpoint = lightning_callbacks.ModelCheckpoint(monitor="test/loss")
    trainer = fit(tmp_path, checkpoint, **OPTIONS)
    trainer.fit(classifier(), TinyData())
    assert checkpoint.dirpath == str(trainer.run.directory / "checkpoints")


@pytest.mark.parametrize(
    "make",
    [
        lambda seen: lightning_callbacks.Timer(timedelta(seconds=60)),
        lambda seen: lightning_callbacks.DeviceStatsMonitor(cpu_stats=find_spec("psutil") is not None),
        lambda seen: lightning_callbacks.ModelSummary(),
        lambda seen: lightning_callbacks.RichModelSummary(),
        lambda seen: lightning_callbacks.LearningRateMonitor(),
        lambda seen: lightning_callbacks.RichProgressBar(),
        lambda seen: lightning_callbacks.TQDMProgressBar(),
        lambda seen: lightning_callbacks.OnExceptionCheckpoint(str(seen)),
        lambda seen: lightning_callbacks.LambdaCallback(on_train_epoch_end=lambda trainer, module: None),
    ],
)
def test_callbacks_of_lightnings(make: Any, tmp_path: Path) -> None:
    callback = make(tmp_path)
    assert len(tracked(tmp_path, callback).history) == 3


def test_the_learning_rate_is_the_rounds(tmp_path: Path) -> None:
    monitor = lightning_callbacks.LearningRateMonitor("epoch")
    module = flcog.Classifier(classifier().model, lr_schedule=lambda round: 0.5**round)  # type: ignore[arg-type]
    tracked(tmp_path, monitor, module)
    assert monitor.lrs == {"lr-SGD": [0.01, 0.005, 0.0025]}


def test_an_exception_is_told_and_saved(tmp_path: Path) -> None:
    class Failing(L.Callback):
        def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
            raise RuntimeError("of the user's")

    with pytest.raises(RuntimeError, match="of the user's"):
        fit(tmp_path, Failing(), lightning_callbacks.OnExceptionCheckpoint(str(tmp_path), "broken"), **OPTIONS)
    assert torch.load(tmp_path / "broken.ckpt", weights_only=True)["round"] == 1


class Hooked(L.LightningModule):
    """A module that uses the hooks of whole epochs, and stores something in checkpoints."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.calls: list[str] = []
        self.kept = 0.0

    def setup(self, stage: str) -> None:
        self.net = nn.Linear(6, 3)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)

    def configure_callbacks(self) -> Any:
        return Recorder()

    def on_train_epoch_end(self) -> None:
        self.calls.append(f"epoch {self.current_epoch} of {self.trainer.max_epochs}")
        self.log("norm", self.net.weight.norm())

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["kept"] = float(self.net.weight.sum())

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.kept = checkpoint["kept"]


def test_a_modules_hooks(tmp_path: Path) -> None:
    module = Hooked()
    trainer = fit(tmp_path, module=module, **OPTIONS | {"rounds": 2})
    assert module.calls == ["epoch 0 of 2", "epoch 1 of 2"]
    assert trainer.history[-1]["norm"] == pytest.approx(float(trainer.params["net.weight"].norm()))
    assert [row["epochs"] for row in trainer.history] == [1, 2], "configure_callbacks"
    again = Hooked()
    fit(tmp_path, module=again, ckpt_path=str(trainer.run_dir), **OPTIONS)
    assert again.kept == pytest.approx(float(trainer.params["net.weight"].sum()))


def test_what_cannot_run_is_refused(tmp_path: Path) -> None:
    with one_line(ValueError, "StochasticWeightAveraging cannot be used in federated training: write a flcog.Method"):
        make_trainer(None, lightning_callbacks.StochasticWeightAveraging(0.1))
    with one_line(ValueError, r"DeviceStatsMonitor: Cannot use `DeviceStatsMonitor` callback with `Trainer\(logger=False\)`"):
        fit(tmp_path, lightning_callbacks.DeviceStatsMonitor(cpu_stats=find_spec("psutil") is not None), **OPTIONS)
    with one_line(ValueError, "EarlyStopping: Early stopping conditioned on metric `val_los` which is not available. Pass in"):
        fit(tmp_path, lightning_callbacks.EarlyStopping("val_los"), **OPTIONS)
    with one_line(ValueError, r"ModelCheckpoint: `ModelCheckpoint\(monitor='val_los'\)` could not find the monitored key"):
        fit(tmp_path, lightning_callbacks.ModelCheckpoint(monitor="val_los"), **OPTIONS)
    with one_line(ValueError, "ThroughputMonitor cannot be used in federated training: the column time/round has"):
        make_trainer(None, lightning_callbacks.ThroughputMonitor(len))
    with one_line(ValueError, "callbacks are methods or observers of flcog, or Lightning's; got 3: give objects"):
        make_trainer(None, 3)  # type: ignore[arg-type]


def test_bad_entries_of_a_checkpoint(tmp_path: Path) -> None:
    class Storing(Hooked):
        entry: Any = {"kept": object()}

        def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
            checkpoint.update(self.entry)

    with one_line(
        ValueError, "Storing.on_save_checkpoint adds 'kept', which must contain tensors, numbers and text alone; got object"
    ):
        fit(tmp_path, module=Storing(), **OPTIONS)
    Storing.entry = {"round": 7}
    with one_line(ValueError, "Storing.on_save_checkpoint changes 'round', which flcog writes"):
        fit(tmp_path, module=Storing(), **OPTIONS)


def test_entries_of_lightnings_that_a_module_changes(tmp_path: Path) -> None:
    """Values that a checkpoint cannot hold are left out, with a warning."""

    class Storing(Hooked):
        def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
            checkpoint["state_dict"]["teacher"] = torch.ones(2)
            checkpoint["hparams_name"] = "kwargs"
            checkpoint["mine"] = {"name": "text", "deep": {"coder": object(), "size": 3}}

        def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
            self.kept = checkpoint["mine"]

    with pytest.warns(UserWarning, match="checkpoints do not store mine.deep.coder of Storing.on_save_checkpoint"):
        run = fit(tmp_path, module=Storing(), **OPTIONS | {"rounds": 1}).run_dir
    stored = torch.load(run / "checkpoints" / "last.ckpt", weights_only=True)
    assert stored["hparams_name"] == "kwargs" and stored["state_dict"].keys() - stored["params"].keys() == {"teacher"}
    with pytest.warns(UserWarning, match="do not store"):
        fit(tmp_path, module=(again := Storing()), ckpt_path=str(run), **OPTIONS)
    assert again.kept == {"name": "text", "deep": {"size": 3}}


def test_every_hook_of_a_callback(tmp_path: Path) -> None:
    called: set[str] = set()

    def hook(name: str) -> Any:
        return lambda *arguments: called.add(name) or ({"seen": 1} if name == "state_dict" else None)

    class Fails(L.Callback):
        def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
            raise RuntimeError("of the user's")

    class Lit(Plain):
        def validation_step(self, batch: Any, batch_idx: int) -> None:
            self.log("val_loss", self.training_step(batch, batch_idx))

        def predict_step(self, batch: Any, batch_idx: int) -> Any:
            return batch[0]

    every = type("Every", (L.Callback,), {name: hook(name) for name in lightning_hooks(L.Callback)})
    options: dict[str, Any] = {**OPTIONS, "num_sanity_val_steps": 1}
    first = fit(tmp_path, every(), module=Lit(), data=Both(), **options | {"rounds": 1})
    fit(tmp_path, every(), module=Lit(), data=Both(), ckpt_path=str(first.run_dir), **options).predict()
    with pytest.raises(RuntimeError):
        fit(tmp_path, every(), Fails(), module=Lit(), data=Both(), **options)
    assert called == set(lightning_hooks(L.Callback))


class Logs(L.Callback):
    """Logs by its own ``self.log`` and by the module's, in hooks of batches and of whole sets."""

    def on_test_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.log_dict({"test_number": float(batch_idx)})

    def on_test_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        pl_module.log("test_whole", 3.0)
        self.log("test_whole", 4.0)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        self.log("own", 5.0)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *arguments: Any) -> None:
        self.log("steps", trainer.global_step)


@pytest.mark.parametrize("make", [Plain, classifier])
def test_callbacks_log_in_every_hook(make: Any, tmp_path: Path) -> None:
    logs, data = Logs(), TinyData(eval_batch_size=8)
    trainer = fit(tmp_path, logs, module=make(), data=data, **OPTIONS | {"local_steps": 3})
    figures = {"test/number": (0 * 8 + 1 * 8 + 2 * 8 + 3 * 6) / 30, "test/whole": 4.0}
    in_training = {"own": 5.0, "train/steps": 2.0}
    row = trainer.history[-1]
    assert {name: row[name] for name in (*figures, *in_training)} == figures | in_training
    again = trainer.test(make(), data)
    assert {name: again[name] for name in figures} == figures and "log" not in vars(logs)


def test_batches_of_the_test_set_are_no_batches_of_a_validation(tmp_path: Path) -> None:
    """A module without ``test_step`` evaluates the test set by its ``validation_step``."""

    class Validated(Plain):
        test_step = L.LightningModule.test_step  # type: ignore[assignment]

        def validation_step(self, batch: Any, batch_idx: int) -> None:
            self.log("val_loss", self.training_step(batch, batch_idx))

    def hook(name: str) -> Any:
        return lambda self, trainer, *arguments: seen.append((name, trainer.validating, trainer.testing))

    kinds, seen = ("validation", "test"), list[Any]()
    names = [f"on_{kind}_batch_{when}" for kind in kinds for when in ("start", "end")]
    fit(
        tmp_path,
        type("Every", (L.Callback,), {name: hook(name) for name in names})(),
        module=Validated(),
        data=Both(eval_batch_size=20),
        **OPTIONS | {"rounds": 1},
    )
    assert seen == [(name, "validation" in name, "test" in name) for kind in (0, 2) for name in names[kind : kind + 2] * 2]


OF_A_VALIDATION = ("on_validation_start", "on_validation_epoch_start", "on_validation_epoch_end", "on_validation_end")


class Validates(Plain):
    """Records its hook and its steps."""

    seen: list[str] = []

    def on_validation_start(self) -> None:
        self.seen.append("module")

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.seen.append("step")
        self.log("val_loss", self.training_step(batch, batch_idx))


@pytest.mark.parametrize("fits", [False, True])
def test_validate_calls_the_hooks_of_a_validation(fits: bool, tmp_path: Path) -> None:
    def hook(name: str) -> Any:
        def called(self: Any, trainer: Any, pl_module: Any) -> None:
            Validates.seen.append(name)
            states.append((trainer.validating, trainer.fitting))
            self.log(name, 1.0)

        return called

    states: list[Any] = []
    every = type("Every", (L.Callback,), {name: hook(name) for name in OF_A_VALIDATION})()
    stopping = lightning_callbacks.EarlyStopping("val_loss", patience=1, min_delta=1e9)
    trainer = make_trainer(tmp_path, every, stopping, **OPTIONS | {"rounds": 1})
    if fits:
        trainer.fit(Validates(), Both())
        trainer.test(Plain(), Both())
    Validates.seen.clear()
    states.clear()
    figures = trainer.validate() if fits else trainer.validate(Validates(), Both())
    before, after = OF_A_VALIDATION[:2], OF_A_VALIDATION[2:]
    assert Validates.seen == [before[0], "module", before[1], "step", *after]
    assert figures.keys() == {"val/loss", *OF_A_VALIDATION} and states == [(True, False)] * 4
    assert stopping.wait_count == 0, "a validation outside fit is no evaluation of a round"
    assert not trainer.validating and float(trainer.callback_metrics["val_loss"]) == pytest.approx(figures["val/loss"])


def test_states_under_one_key_are_refused(tmp_path: Path) -> None:
    message = "2 callbacks have the state_key Recorder, under which a checkpoint stores one state: list one of them, or write"
    with one_line(ValueError, message):
        make_trainer(tmp_path, Recorder(), Recorder())

    class Returns(Plain):
        def configure_callbacks(self) -> Any:
            return [Recorder(), Recorder()]

    with one_line(ValueError, message):
        fit(tmp_path, module=Returns(), **OPTIONS)
    first, second = Recorder(), type("Second", (Recorder,), {"state_key": "another"})()
    run = fit(tmp_path, first, second, **OPTIONS | {"rounds": 1}).run_dir
    assert first.epochs == second.epochs == 1 and run is not None


def test_a_modules_callbacks_replace_the_trainers_of_their_class(tmp_path: Path) -> None:
    class Replaces(Plain):
        def configure_callbacks(self) -> Any:
            return lightning_callbacks.EarlyStopping("train_loss", min_delta=1e9, patience=2)

    stopping, recorder = lightning_callbacks.EarlyStopping("train_loss", min_delta=1e9, patience=1), Recorder()
    trainer = fit(tmp_path, stopping, recorder, module=Replaces(), **OPTIONS | {"rounds": 9})
    assert len(trainer.history) == 3 and stopping not in trainer.callbacks and recorder in trainer.callbacks
    trainer.fit(Plain(), TinyData())
    assert len(trainer.history) == 2 and stopping in trainer.callbacks, "the trainer's own list is as it was"
