"""The federated trainer has the attributes of ``lightning.Trainer``, and so has ``self.trainer`` of a module that is evaluated."""

import gc
import weakref
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from engine.test_lightning_hooks import Plain
from harness import TinyData, classifier, make_trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.demos.boring_classes import BoringModel
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.trainer.states import RunningStage
from torch.utils.data import DataLoader, TensorDataset

import flcog
from flcog.lightning_attributes import NAMES


class Loaders(L.LightningDataModule):
    """A user's data module."""

    def train_dataloader(self) -> Any:
        return DataLoader(TensorDataset(torch.randn(12, 6), torch.arange(12) % 3), batch_size=4)

    test_dataloader = train_dataloader


class Asks(Plain):
    """Reads its trainer while it is evaluated, as torchgeo's tasks do."""

    seen: list[Any] = []

    def test_step(self, batch: Any, batch_idx: int) -> Any:
        has = hasattr(self.trainer, "datamodule"), hasattr(self.trainer, "nothing_like_this")
        self.logger.experiment.log_metrics({"own": 1.0}, self.current_epoch)  # type: ignore[union-attr]
        self.seen.append((*has, self.trainer.datamodule, self.trainer.testing, self.trainer.state.stage, self.trainer.max_epochs))
        return super().test_step(batch, batch_idx)


def test_a_module_sees_the_run_while_it_is_evaluated(tmp_path: Path) -> None:
    data, logger = Loaders(), CSVLogger(tmp_path)
    trainer = flcog.FederatedTrainer(rounds=2, local_steps=2, clients_per_round=2, default_root_dir=str(tmp_path), logger=logger)
    trainer.fit(Asks(), data)
    assert Asks.seen[0] == (True, False, data, True, RunningStage.TESTING, 2)


class Places(Plain):
    """Reads its trainer's directories, as a module that writes files does."""

    seen: list[str] = []

    def on_fit_start(self) -> None:
        self.seen[:] = self.trainer.default_root_dir, str(self.trainer.log_dir)


def test_the_trainer_has_lightnings_attributes(tmp_path: Path) -> None:
    checkpoints, data = ModelCheckpoint(monitor="train_loss"), Loaders()
    trainer: Any = make_trainer(tmp_path, checkpoints, rounds=2, clients_per_round=2, precision="32-true")
    with pytest.raises(
        AttributeError, match=r"trainer.callback_metrics describes a run, and this trainer has none yet: call fit"
    ):
        _ = trainer.callback_metrics
    assert not hasattr(trainer, "no_such_attribute")
    trainer.fit(Places(), data)
    for name in NAMES:
        getattr(trainer, name)
    assert trainer.current_epoch == trainer.global_step == trainer.max_epochs == 2 and trainer.world_size == 1
    assert float(trainer.callback_metrics["train_loss"]) == pytest.approx(trainer.history[-1]["train/loss"])
    assert trainer.default_root_dir == Places.seen[0] == str(tmp_path) and trainer.log_dir == Places.seen[1] == str(
        trainer.run_dir
    )
    assert trainer.checkpoint_callback is checkpoints and Path(checkpoints.best_model_path).is_file()
    assert trainer.datamodule is data and isinstance(trainer.train_dataloader, DataLoader) and trainer.val_dataloaders is None
    assert not trainer.interrupted and not trainer.training and trainer.fast_dev_run is False and trainer.logger is None
    assert trainer.early_stopping_callback is None and trainer.early_stopping_callbacks == [] and trainer.max_steps == -1
    assert trainer.num_val_batches == [] and trainer.num_test_batches == [3], "12 samples in batches of 4"
    with pytest.raises(
        AttributeError, match=r"trainer.is_last_batch describes a client's step: read self.trainer.is_last_batch in"
    ):
        _ = trainer.is_last_batch
    saved = torch.load(checkpoints.best_model_path, weights_only=True)
    assert (saved["epoch"], saved["global_step"]) == (saved["round"] - 1, saved["round"])
    trainer.should_stop = True
    assert trainer.run.should_stop


def test_the_sanity_check_says_so(tmp_path: Path) -> None:
    seen: list[Any] = []

    class Looks(L.Callback):
        def on_sanity_check_start(self, trainer: Any, pl_module: Any) -> None:
            seen.append(trainer.sanity_checking)

        on_fit_start = on_train_start = on_sanity_check_end = on_sanity_check_start

    class Checks(Plain):
        def test_step(self, batch: Any, batch_idx: int) -> Any:
            seen.append((self.trainer.sanity_checking, self.trainer.testing))
            return super().test_step(batch, batch_idx)

    make_trainer(tmp_path, Looks(), rounds=1, num_sanity_val_steps=1, eval_every=1, precision="32-true").fit(Checks(), Loaders())
    assert seen == [False, True, (True, True), True, False, *[(False, True)] * 3]


def test_a_logger_is_there_before_the_run(tmp_path: Path) -> None:
    logger = CSVLogger(tmp_path)
    trainer = flcog.FederatedTrainer(rounds=1, local_steps=1, logger=[logger])
    assert trainer.logger is logger and trainer.loggers == [logger]
    trainer.logger = (logger,)  # type: ignore[assignment]
    assert trainer.loggers == [logger]
    trainer.logger = False
    assert trainer.logger is None and trainer.loggers == []


class LogsItself(Plain):
    def test_step(self, batch: Any, batch_idx: int) -> Any:
        assert self.logger is not None
        self.logger.log_metrics({"own": float(self.global_step)}, step=7)
        return super().test_step(batch, batch_idx)


@pytest.mark.parametrize("checkpoint", [None, "last"])
def test_a_test_after_a_run_has_its_logger_and_remembers_it(checkpoint: str | None, tmp_path: Path) -> None:
    logger, data = CSVLogger("logs"), Loaders()
    trainer: Any = flcog.FederatedTrainer(
        rounds=2, local_steps=1, eval_every=0, clients_per_round=2, default_root_dir=str(tmp_path), logger=logger
    )
    trainer.fit(Plain(), data)
    trainer.test(LogsItself(), data, ckpt_path=checkpoint)
    assert trainer.global_step == trainer.current_epoch == 2 and trainer.log_dir == str(trainer.run_dir)
    assert trainer.logger is logger and Path(logger.log_dir).is_relative_to(trainer.run_dir)
    assert "2.0" in Path(logger.log_dir, "metrics.csv").read_text(), "own"


def test_a_test_without_a_run_has_the_given_logger(tmp_path: Path) -> None:
    logger = CSVLogger(tmp_path)
    trainer = flcog.FederatedTrainer(rounds=1, local_steps=1, default_root_dir=str(tmp_path), logger=logger)
    trainer.test(LogsItself(), Loaders())
    assert "0.0" in Path(logger.log_dir, "metrics.csv").read_text()
    trainer.logger = False
    trainer.test(Plain(), Loaders())


def test_a_trial_run_says_so(tmp_path: Path) -> None:
    seen: list[Any] = []

    class Looks(L.Callback):
        def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
            seen.append((trainer.fast_dev_run, trainer.train_dataloader))

    make_trainer(tmp_path, Looks(), fast_dev_run=2, local_steps=None).fit(Plain(), TinyData())
    assert seen == [(2, None), (2, None)]


def test_an_evaluation_is_forgotten_when_the_next_one_ends(tmp_path: Path) -> None:
    trainer: Any = make_trainer(tmp_path, precision="32-true")
    sessions = []
    for _ in range(2):
        trainer.test(Plain(), Loaders())
        sessions.append(weakref.ref(trainer._lightning.trainer._run))
    gc.collect()
    assert [session() is None for session in sessions] == [True, False]


class Counts(BoringModel):
    """Notes its epoch in every hook of a validation and a test."""

    seen: list[tuple[str, int]] = []

    def validation_step(self, batch: Any, batch_idx: int) -> Any:
        self.seen.append(("validation_step", self.current_epoch))
        return super().validation_step(batch, batch_idx)

    def on_validation_epoch_end(self) -> None:
        self.seen.append(("validation ends", self.trainer.current_epoch))

    def test_step(self, batch: Any, batch_idx: int) -> Any:
        self.seen.append(("test_step", self.current_epoch))
        return super().test_step(batch, batch_idx)

    def predict_step(self, batch: Any, batch_idx: int) -> Any:
        self.seen.append(("predict_step", self.current_epoch))
        return super().predict_step(batch, batch_idx)


def test_evaluations_have_lightnings_epochs(tmp_path: Path) -> None:
    seen, options = dict[str, Any](), {"default_root_dir": str(tmp_path), "logger": False, "enable_checkpointing": False}
    trainers: list[Any] = [
        L.Trainer(max_epochs=2, num_sanity_val_steps=0, limit_train_batches=2, accelerator="cpu", **options),
        flcog.FederatedTrainer(rounds=2, local_steps=2, accelerator="cpu", **options),
    ]
    for trainer in trainers:
        module = Counts()
        module.seen.clear()
        trainer.fit(module, module.train_dataloader(), module.val_dataloader())
        trainer.validate(module, module.val_dataloader())
        trainer.test(module, module.test_dataloader())
        trainer.predict(module, module.predict_dataloader())
        seen[type(trainer).__name__] = list(dict.fromkeys(module.seen))
    assert seen["Trainer"] == seen["FederatedTrainer"]
    assert [("validation_step", epoch) for epoch in range(3)] == [
        each for each in seen["Trainer"] if each[0] == "validation_step"
    ]


def test_figures_are_printed_and_answer_as_lightnings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trainer = make_trainer(tmp_path, rounds=1, enable_progress_bar=False, enable_model_summary=False)
    trainer.fit(classifier(), TinyData())
    assert not capsys.readouterr().out
    figures = trainer.test()
    lines = dict(line.split() for line in capsys.readouterr().out.splitlines())
    assert {name: float(text) for name, text in lines.items()} == pytest.approx(figures, rel=1e-5)
    for name, value in figures.items():
        assert figures[0][name.replace("/", "_")] == figures[name.partition("/")[2]] == value  # type: ignore[index]
    assert trainer.test(verbose=False) == figures and not capsys.readouterr().out
    with pytest.raises(KeyError, match=r"the figures are test/loss, .*; got 'acuracy'"):
        figures["acuracy"]
