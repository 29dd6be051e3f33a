"""Loaders instead of a data module, as ``lightning.Trainer`` takes them, and the teardown and state of a data module."""

from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from datamodules.common import one_line
from harness import fit, make_trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.demos.boring_classes import BoringModel
from torch.utils.data import DataLoader, TensorDataset

import flcog
from flcog.run.predictions import by_name
from run.test_wrapped_data import TENSORS, TESTS, Plain, module

OPTIONS: dict[str, Any] = {"rounds": 1, "local_steps": 1, "precision": "32-true", "eval_every": 1}
TRAIN, VAL = DataLoader(TENSORS, batch_size=16, shuffle=True), DataLoader(TESTS, batch_size=20)


class Module(L.LightningDataModule):
    def train_dataloader(self) -> Any:
        return TRAIN

    def val_dataloader(self) -> Any:
        return VAL


@pytest.mark.parametrize(
    ("arguments", "options"),
    [
        ((TRAIN, VAL), {}),
        ((), {"train_dataloaders": TRAIN, "val_dataloaders": VAL}),
        ((TRAIN,), {"val_dataloaders": [VAL]}),
        ((TENSORS, TESTS), {}),
        ((), {"train_dataloaders": Module()}),
    ],
    ids=["by place", "by name", "mixed", "data sets", "a data module"],
)
def test_a_training_set_and_a_validation_set(arguments: Any, options: Any, tmp_path: Path) -> None:
    trainer, expected = make_trainer(tmp_path, **OPTIONS), make_trainer(tmp_path, **OPTIONS)
    data: Any = Module()
    if arguments[:1] == (TENSORS,):
        data = flcog.datamodules.TorchDataset(TENSORS, val=TESTS, num_workers=0)
    expected.fit(module(), data)
    trainer.fit(module(), *arguments, **options)
    same = ["train/loss", "val/loss", "val/accuracy"]
    assert [trainer.history[0][name] for name in same] == [expected.history[0][name] for name in same]


def test_evaluations_take_a_loader(tmp_path: Path) -> None:
    trained = module()
    for verb, split in (("validate", "val"), ("test", "test")):
        figures = getattr(make_trainer(None, **OPTIONS), verb)(trained, VAL)
        assert figures == getattr(make_trainer(None, **OPTIONS), verb)(trained, dataloaders=VAL)
        expected = make_trainer(None, **OPTIONS).validate(trained, Module())
        assert figures == {name.replace("val", split, 1): value for name, value in expected.items()}
    found = make_trainer(None, **OPTIONS).predict(trained, VAL)
    assert torch.equal(found["target"], TESTS.tensors[1])


def test_evaluations_take_the_rest_from_the_last_fit(tmp_path: Path) -> None:
    best = ModelCheckpoint(monitor="val_loss", mode="max")
    trainer = make_trainer(tmp_path, best, **OPTIONS | {"rounds": 2})
    trainer.fit(model := module(), Module())
    last, data = trainer.history[-1]["val/loss"], Module()
    assert trainer.validate(model)["val/loss"] == trainer.validate(model, data)["val/loss"] == last
    expected = trainer.validate(model, data, ckpt_path=best.best_model_path)
    assert Path(best.best_model_path).stem.startswith("epoch=0") and expected["val/loss"] != last
    assert trainer.validate() == trainer.validate(datamodule=data) == trainer.validate(ckpt_path="best") == expected
    assert float(trainer.callback_metrics["val_loss"]) == pytest.approx(expected["val/loss"])
    assert {name.replace("test", "val"): value for name, value in trainer.test(dataloaders=VAL).items()} == expected
    other = make_trainer(tmp_path, **OPTIONS | {"rounds": 2})
    other.fit(model, Module())
    assert other.validate()["val/loss"] == other.validate(model, data)["val/loss"] == other.history[-1]["val/loss"]


class OfItself(BoringModel):
    """A module with its own loaders, which need its ``setup``."""

    def setup(self, stage: str) -> None:
        self.stages = [*getattr(self, "stages", []), stage]

    def test_step(self, batch: Any, batch_idx: int) -> None:
        self.log("test_loss", self.step(batch))

    def train_dataloader(self) -> Any:
        return [None, super().train_dataloader()]["fit" in self.stages]


@pytest.mark.slow
def test_a_module_with_loaders_of_its_own(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    options: Any = {"rounds": 1, "local_steps": 1, "precision": "32-true", "eval_every": 1}
    trainer = make_trainer(tmp_path, **options)
    trainer.fit(model := OfItself())
    assert {"train/loss", "test/loss"} < set(trainer.history[0]) and model.stages == ["fit", "test"]
    assert trainer.callback_metrics["train_loss"] == pytest.approx(trainer.history[0]["train/loss"])
    assert not [warning for warning in recwarn if "train_dataloader" in str(warning.message)]
    assert set(make_trainer(None, **options).test(OfItself())) == {"test/loss"}

    class Tested(OfItself):
        train_dataloader = L.LightningModule.train_dataloader

    assert set(make_trainer(None, **options).test(Tested())) == {"test/loss"}


class Predicts(OfItself):
    """A module and a data module with everything for predictions."""

    seen: list[str] = []

    def predict_step(self, batch: Any, batch_idx: int) -> Any:
        self.seen.append(f"step {batch_idx} {self.trainer.predicting}")
        return {"first": self(batch)[:, 0], "sum": batch.sum(1)}

    def predict_dataloader(self) -> Any:
        return DataLoader(torch.arange(160.0).view(5, 32) / 100, batch_size=2)  # type: ignore[arg-type]


class ForPredictions(L.LightningDataModule):
    def setup(self, stage: str) -> None:
        self.batch_size = {"predict": 3}[stage]

    def predict_dataloader(self) -> Any:
        return DataLoader(torch.arange(160.0).view(5, 32) / 100, batch_size=self.batch_size)  # type: ignore[arg-type]

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        return batch + 1


class Watches(L.Callback):
    def on_predict_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        pl_module.seen.append(f"callback {batch_idx} {len(outputs['sum'])}")


@pytest.mark.slow
def test_predictions_by_a_modules_own_step(tmp_path: Path) -> None:
    for hook in ("start", "epoch_start", "batch_start", "batch_end", "end"):
        setattr(Predicts, f"on_predict_{hook}", lambda self, *arguments, hook=hook: self.seen.append(f"on_predict_{hook}"))
    trainer = make_trainer(tmp_path, Watches(), **OPTIONS)
    trainer.fit(model := Predicts())
    found: Any = trainer.predict(model)
    first = ["on_predict_batch_start", "step 0 True", "callback 0 2", "on_predict_batch_end"]
    assert Predicts.seen[:6] == ["on_predict_start", "on_predict_epoch_start", *first] and Predicts.seen[-1] == "on_predict_end"
    rows = torch.arange(160.0).view(5, 32) / 100
    assert [len(part["sum"]) for part in found] == [2, 2, 1]
    assert torch.allclose(torch.cat([part["sum"] for part in found]), rows.sum(1))
    assert torch.allclose(torch.cat([part["first"] for part in found]), model(rows)[:, 0])
    changed: Any = trainer.predict(model, datamodule=ForPredictions())
    assert [len(part["sum"]) for part in changed] == [3, 2]
    assert torch.allclose(torch.cat([part["sum"] for part in changed]), rows.sum(1) + 32)
    assert torch.equal(by_name(changed)["sum"], torch.cat([part["sum"] for part in changed]))


def test_predictions_take_the_rest_from_the_last_fit(tmp_path: Path) -> None:
    """Predictions use the data module's ``predict_dataloader``, and the checkpoint may be a positional argument."""

    class Both(Module):
        def predict_dataloader(self) -> Any:
            return DataLoader(TensorDataset(*(tensor[:7] for tensor in TESTS.tensors)), batch_size=4)

    trainer = make_trainer(tmp_path, **OPTIONS)
    trainer.fit(model := module(), data := Both())
    expected = trainer.predict(model, data)["probability"]
    assert len(expected) == 7
    for found in (trainer.predict(), trainer.predict(model)):
        assert torch.equal(found["probability"], expected)
    with one_line(ValueError, "no checkpoint at .*none.ckpt"):
        trainer.predict(model, data, str(tmp_path / "none.ckpt"))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda trainer: trainer.fit(module(), Module(), VAL), "fit takes a data module or loaders; got both"),
        (lambda trainer: trainer.fit(module(), val_dataloaders=VAL), "fit needs a training set; got a validation set alone"),
        (lambda trainer: trainer.fit(module()), "fit needs data: "),
        (lambda trainer: trainer.test(module()), "test needs data: "),
    ],
)
def test_bad_arguments(call: Any, message: str) -> None:
    with one_line(ValueError, message):
        call(make_trainer(None, **OPTIONS))


class Kept(Plain):
    """A data module with a state."""

    state: Any = None

    def teardown(self, stage: str) -> None:
        self.called.append(f"teardown {stage}")

    def state_dict(self) -> dict[str, Any]:
        return {"epochs": 3} if self.state is None else self.state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.called.append(f"load {state_dict}")

    def on_exception(self, exception: BaseException) -> None:
        self.called.append(f"exception {exception}")


def test_the_ends_and_the_state_of_a_data_module(tmp_path: Path) -> None:
    trainer = fit(tmp_path, data=(first := Kept()), module=module(), **OPTIONS)  # type: ignore[arg-type]
    assert first.called == ["prepare_data", "fit", "test", "teardown fit"]
    options = OPTIONS | {"rounds": 2}
    fit(tmp_path, data=(second := Kept()), module=module(), ckpt_path=str(trainer.run_dir), **options)  # type: ignore[arg-type]
    assert second.called[-2:] == ["load {'epochs': 3}", "teardown fit"]
    make_trainer(None, **OPTIONS).test(module(), third := Kept())
    assert third.called[-1] == "teardown test"

    class Fails(L.Callback):
        def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
            raise RuntimeError("of the user's")

    with pytest.raises(RuntimeError):
        fit(tmp_path, Fails(), data=(last := Kept()), module=module(), **OPTIONS)  # type: ignore[arg-type]
    assert last.called[-1] == "exception of the user's"
    last.state = {"set": TensorDataset(torch.ones(1))}
    with pytest.warns(UserWarning, match="checkpoints do not store Kept.set, which are no tensors, numbers or text"):
        fit(tmp_path, data=last, module=module(), **OPTIONS)  # type: ignore[arg-type]
