"""``setup`` and ``teardown`` of the verbs outside ``fit``, as ``lightning.Trainer`` calls them."""

from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from harness import make_trainer
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

from run.test_wrapped_data import TENSORS, TESTS, Plain

VERBS = ("validate", "test", "predict")
OPTIONS: dict[str, Any] = {"rounds": 1, "local_steps": 1, "precision": "32-true", "eval_every": 0}


class Stages(L.LightningModule):
    """Records its stages, makes its layer in each of them, and needs what each of them sets."""

    def __init__(self, calls: list[str]) -> None:
        super().__init__()
        self.calls = calls

    def setup(self, stage: str) -> None:
        self.calls.append(f"module setup {stage} {self.trainer.state.fn.value}")
        self.layer = nn.Linear(len(TENSORS.tensors[0][0]), 3)
        setattr(self, f"of_{stage}", 2.0)

    def teardown(self, stage: str) -> None:
        self.calls.append(f"module teardown {stage}")

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return cross_entropy(self.layer(batch[0]), batch[1])

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val_two", self.of_validate)

    def test_step(self, batch: Any, batch_idx: int) -> None:
        self.log("test_two", self.of_test)
        self.log("test_loss", self.training_step(batch, batch_idx))

    def predict_step(self, batch: Any, batch_idx: int) -> Any:
        return self.of_predict * self.layer(batch[0])

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=self.of_fit)


class Watches(L.Callback):
    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        pl_module.calls.append(f"callback setup {stage} {trainer.state.fn.value}")

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        pl_module.calls.append(f"callback teardown {stage}")


class Data(Plain):
    def setup(self, stage: str) -> None:
        self.stages = [*getattr(self, "stages", []), f"setup {stage}"]

    def teardown(self, stage: str) -> None:
        self.stages.append(f"teardown {stage}")

    def val_dataloader(self) -> Any:
        return DataLoader(TESTS, batch_size=20)


def around(stage: str) -> list[str]:
    calls = [f"module setup {stage} {stage}", f"callback setup {stage} {stage}"]
    return [*calls, f"callback teardown {stage}", f"module teardown {stage}"]


@pytest.mark.parametrize("again", [False, True], ids=["a run of its own", "the run as it is"])
def test_each_verb_sets_up_and_tears_down_its_own_stage(again: bool, tmp_path: Path) -> None:
    """The run, and its checkpoint, have the trained weights, although ``setup`` builds the layer anew in every stage."""
    calls, data, trainer = list[str](), Data(), make_trainer(tmp_path, Watches(), **OPTIONS)
    trainer.fit(model := Stages(calls), data)
    assert calls == around("fit") and data.stages == ["setup fit", "setup test", "teardown fit"]
    weights = {name: value.clone() for name, value in trainer.model.state_dict().items()}
    outputs = 2 * model.layer(TESTS.tensors[0]).detach()
    loss = float(cross_entropy(outputs / 2, TESTS.tensors[1]))
    arguments = () if again else (model, data, str(trainer.run_dir))
    for stage in VERBS:
        calls.clear()
        data.stages.clear()
        found: Any = getattr(trainer, stage)(*arguments)
        assert calls == around(stage) and data.stages[-2:] == [f"setup {stage}", f"teardown {stage}"]
        assert (data.stages[:-2] == []) == again
        if stage == "predict":
            assert torch.allclose(torch.cat(found), outputs)
        else:
            assert found[0][f"{stage[:3] if stage == 'validate' else stage}_two"] == 2
        if stage == "test":
            assert found["test/loss"] == pytest.approx(loss)
    assert trainer.model is model and all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())


def test_a_new_module_is_evaluated_without_the_setup_of_fit(tmp_path: Path) -> None:
    """Its ``configure_optimizers`` cannot be called then, and an evaluation takes no step."""
    trainer = make_trainer(tmp_path, **OPTIONS)
    trainer.fit(Stages([]), Data())
    expected = trainer.test()
    found = make_trainer(tmp_path, **OPTIONS).test(Stages(calls := []), Data(), ckpt_path=str(trainer.run_dir))
    assert found == expected and calls == ["module setup test test", "module teardown test"]
