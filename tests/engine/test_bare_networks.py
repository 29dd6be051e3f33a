"""A bare network is made the client that learns the data's task, in Python and by class path."""

from pathlib import Path
from typing import Any

import pytest
import torch
from harness import NUM_CLASSES, NUM_FEATURES, TinyData, assert_close, fit, make_trainer
from torch import nn

import flcog
from flcog.commands.cli import main

NETWORK = """
from torch import nn

class Net(nn.Sequential):
    def __init__(self, width: int = 4):
        super().__init__(nn.Flatten(), nn.Linear(28 * 28, width), nn.ReLU(), nn.Linear(width, 10))
"""


@pytest.mark.parametrize(
    ("targets", "outputs", "kind"),
    [("classification", 3, flcog.Classifier), ("multilabel", 3, flcog.MultiLabelClassifier), ("regression", 1, flcog.Regressor)],
)
def test_the_task_chooses(targets: Any, outputs: int, kind: type, tmp_path: Path) -> None:
    def network() -> nn.Module:
        torch.manual_seed(0)
        return nn.Linear(NUM_FEATURES, outputs)

    bare, data = network(), TinyData(targets=targets)
    trainer = fit(tmp_path, module=bare, data=data, eval_every=1)  # type: ignore[arg-type]
    by_hand = fit(tmp_path, module=kind(network()), data=data, eval_every=1)
    assert type(trainer.run.model.module) is kind
    assert_close(trainer.state, by_hand.state, 0)
    assert_close(bare.state_dict(), trainer.state, 0)
    assert trainer.notes[0] == (
        f"client: Linear trains as a flcog.{kind.__name__} by SGD(lr=0.01, momentum=0.9): flcog.{kind.__name__}(network, "
        "optimizer=...) chooses another"
    )
    measured = make_trainer(tmp_path, eval_every=1).test(bare, data)
    assert measured["test/loss"] == pytest.approx(trainer.history[-1]["test/loss"])


def test_a_second_fit_is_noticed_and_a_resume_goes_on(tmp_path: Path) -> None:
    bare = nn.Linear(NUM_FEATURES, NUM_CLASSES)
    first = fit(tmp_path, module=bare, rounds=1)  # type: ignore[arg-type]
    again = fit(tmp_path, module=bare, rounds=1)  # type: ignore[arg-type]
    assert any("an earlier fit trained this model" in note for note in again.notes)
    on = fit(tmp_path, module=nn.Linear(NUM_FEATURES, NUM_CLASSES), rounds=2, ckpt_path=str(first.run_dir))  # type: ignore[arg-type]
    assert on.round == 2


@pytest.mark.usefixtures("command_line")
def test_by_class_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "bare_network_of_a_test.py").write_text(NETWORK)
    monkeypatch.chdir(tmp_path)
    words = ["fit", "--model", "bare_network_of_a_test.Net", "--model.width", "5", "--data", "Digits", "--trainer.rounds", "1"]
    main([*words, "--trainer.local_steps", "1", "--trainer.logger", "false", "--trainer.accelerator", "cpu"])
    assert "Net trains as a flcog.Classifier by SGD" in " ".join(capsys.readouterr().out.split())


def test_what_a_network_returns_is_a_tensor_or_has_logits() -> None:
    class Named(nn.Linear):
        def forward(self, x: torch.Tensor) -> Any:
            return {"logits": super().forward(x), "loss": None}

    class Pair(nn.Linear):
        def forward(self, x: torch.Tensor) -> Any:
            return super().forward(x), None

    rows = torch.randn(2, 3)
    network = Named(3, 2)
    assert torch.equal(flcog.Classifier(network)(rows), nn.functional.linear(rows, network.weight, network.bias))
    with pytest.raises(ValueError, match=r"^Pair returns a tuple: a network returns a tensor, or has it as logits"):
        flcog.Classifier(Pair(3, 2))(rows)
