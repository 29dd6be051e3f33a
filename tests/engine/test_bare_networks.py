"""A bare network is wrapped in the client module for the data's task, in Python and on the command line."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from harness import NUM_CLASSES, NUM_FEATURES, TinyData, assert_close, fit, make_trainer, train
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


class Returns(nn.Linear):
    """A layer that returns its outputs inside another structure."""

    def __init__(self, wrap: Any) -> None:
        super().__init__(3, 2)
        self.wrap = wrap

    def forward(self, x: torch.Tensor) -> Any:
        return self.wrap(super().forward(x))


@pytest.mark.parametrize(
    ("wrap", "output"),
    [
        (lambda outputs: {"logits": outputs, "loss": None}, None),
        (lambda outputs: {"scores": outputs, "logits": outputs + 1}, "scores"),
        (lambda outputs: (None, outputs), 1),
        (lambda outputs: [outputs, outputs + 1], 0),
    ],
)
def test_outputs_are_logits_or_have_a_name(wrap: Any, output: Any) -> None:
    network, rows = Returns(wrap), torch.randn(2, 3)
    expected = nn.functional.linear(rows, network.weight, network.bias)
    assert torch.equal(flcog.Classifier(network, output=output)(rows), expected)


@pytest.mark.parametrize(
    ("wrap", "message"),
    [
        (lambda outputs: (outputs, None), "a tuple of 2 parts, and output=None names no tensor"),
        (lambda outputs: {"scores": outputs}, "a dict of scores, and output=None names no tensor"),
    ],
)
def test_other_returns_say_how_to_name_the_outputs(wrap: Any, message: str) -> None:
    with pytest.raises(ValueError, match=f"^Returns returns {message}"):
        flcog.Classifier(Returns(wrap))(torch.randn(2, 3))


@pytest.mark.parametrize("network", [nn.Linear(3, 2).requires_grad_(False), nn.Flatten()], ids=["frozen", "without parameters"])
def test_a_network_that_cannot_train_is_refused(network: nn.Module) -> None:
    with pytest.raises(ValueError, match=r"^Classifier has no parameter that trains: let requires_grad be True for some"):
        flcog.Classifier(network).configure_optimizers()


def test_an_optimiser_that_refuses_its_options_names_the_client() -> None:
    with pytest.raises(ValueError, match=r"^Classifier: optimizer: Invalid learning rate: -0.1"):
        flcog.Classifier(nn.Linear(3, 2), partial(torch.optim.SGD, lr=-0.1)).configure_optimizers()
    with pytest.raises(ValueError, match=r"^Invalid learning rate: -0.1"):  # of a user's own function, whose traceback stays
        flcog.Classifier(nn.Linear(3, 2), lambda params: torch.optim.SGD(params, lr=-0.1)).configure_optimizers()


@pytest.mark.parametrize("executor", ["loop", "vmap"])
def test_a_batch_of_one_sample_before_batchnorm_has_a_remedy(executor: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    rows, targets = torch.randn(27, 3).numpy(), torch.arange(27).numpy() % 2
    data = flcog.datamodules.ArrayData(train_inputs=rows, train_targets=targets, num_clients=3, batch_size=4)
    with pytest.raises(ValueError, match="Expected more than 1 value per channel") as error:
        options = {"local_epochs": 1, "rounds": 1, "clients_per_round": 3, "precision": "32-true", "executor": executor}
        make_trainer(tmp_path, **options).fit(nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)), data)
    assert any("drop_last=True, of the data module or of its loader, leaves out" in note for note in error.value.__notes__)


@pytest.mark.parametrize("executor", ["loop", "vmap"])
def test_an_error_inside_a_layer_names_it_and_both_widths(executor: str) -> None:
    network = nn.Sequential(nn.Linear(NUM_FEATURES, 8), nn.ReLU(), nn.Sequential(nn.Linear(9, NUM_CLASSES)))
    with pytest.raises(RuntimeError, match="x8 and 9x3") as caught:
        train(module=network, clients_per_round=8, executor=executor)
    layer, client, *_ = caught.value.__notes__
    assert layer == "in the layer model.2.0, Linear(in_features=9, out_features=3, bias=True)" and client.startswith("in client")
