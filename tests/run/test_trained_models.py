"""The results of a run: its model, in Python and as files that need no flcog, and its predictions."""

import csv
import importlib
import json
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lightning as L
import numpy as np
import pytest
import torch
from faithful.modules import Plain
from harness import BatchNormMLP, TinyData, classifier, dropout_network, fit, make_trainer
from matplotlib.ticker import PercentFormatter
from torch import nn

import flcog
from flcog.callbacks import ClipGradient, FedExP, FedProx, KeepLocal
from flcog.data import Samples
from flcog.datamodules import Digits
from flcog.functional.evaluation import Evaluator
from flcog.method import Method
from flcog.models import MLP, LoRA
from flcog.run.pictures import history_figure
from flcog.run.predictions import write_predictions

FLOAT = {"precision": "32-true", "rounds": 2}


def held_out_inputs() -> torch.Tensor:
    return TinyData().federation.test.inputs  # type: ignore[union-attr]


@torch.no_grad()
def outputs_of(network: nn.Module) -> torch.Tensor:
    return network.eval()(held_out_inputs())


def test_the_trainers_model_is_the_trained_one(tmp_path: Path) -> None:
    module = classifier(network=BatchNormMLP)
    before = {name: value.clone() for name, value in module.state_dict().items()}
    trainer = make_trainer(tmp_path, **FLOAT)
    with pytest.raises(ValueError, match="this trainer has no run yet"):
        _ = trainer.model
    trainer.fit(module, TinyData())
    assert trainer.model is module
    state = module.state_dict()
    assert all(torch.equal(state[name], value) for name, value in (trainer.run.params | trainer.run.buffers).items())
    assert any(not torch.equal(state[name], before[name]) for name in before)
    assert trainer.predict()["prediction"].tolist() == outputs_of(trainer.model).argmax(1).tolist()


def test_between_rounds_it_is_the_global_model_not_the_last_clients(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, **FLOAT)
    trainer.prepare(classifier(), TinyData())
    trainer.train_round()
    state = trainer.model.state_dict()
    assert all(torch.equal(state[name], value) for name, value in trainer.run.params.items())


def test_predictions_are_the_models(tmp_path: Path) -> None:
    trainer = fit(tmp_path, **FLOAT, eval_every=1)
    found = trainer.predict()
    outputs = outputs_of(trainer.model)
    torch.testing.assert_close(found["probability"], outputs.softmax(1))
    assert found["target"].tolist() == TinyData().federation.test.labels.tolist()  # type: ignore[union-attr]
    accuracy = float((found["prediction"] == found["target"]).float().mean())
    assert accuracy == pytest.approx(trainer.history[-1]["test/accuracy"])
    some = trainer.predict(inputs=held_out_inputs()[:3].numpy())
    torch.testing.assert_close(some["probability"], found["probability"][:3])
    assert "target" not in some


def test_other_tasks_predict_what_they_learn(tmp_path: Path) -> None:
    torch.manual_seed(0)
    regressor = flcog.Regressor(MLP(6, (4,), 1))
    trainer = fit(tmp_path, module=regressor, data=TinyData(targets="regression"), **FLOAT)
    found = trainer.predict()
    torch.testing.assert_close(found["prediction"], outputs_of(regressor).squeeze(1))
    labels = flcog.MultiLabelClassifier(MLP(6, (4,), 3))
    found = fit(tmp_path, module=labels, data=TinyData(targets="multilabel"), **FLOAT).predict()
    torch.testing.assert_close(found["probability"], outputs_of(labels).sigmoid())
    assert torch.equal(found["prediction"], (outputs_of(labels) > 0).long())


def test_predictions_from_a_checkpoint_follow_what_is_evaluated(tmp_path: Path) -> None:
    """FedExP is evaluated at the mean of two rounds' models."""
    trainer = fit(tmp_path, FedExP(), **FLOAT, eval_every=1)
    last = str(trainer.run.directory / "checkpoints/last.ckpt")
    again = make_trainer(None, FedExP(), **FLOAT).predict(classifier(), TinyData(), last)
    assert all(torch.equal(again[name], value) for name, value in trainer.predict().items())
    accuracy = float((again["prediction"] == again["target"]).float().mean())
    assert accuracy == pytest.approx(trainer.history[-1]["test/accuracy"])
    torch.testing.assert_close(again["probability"], outputs_of(trainer.model).softmax(1))
    own = trainer.model.state_dict()
    assert not all(torch.allclose(value, own[name], rtol=1e-7, atol=0) for name, value in trainer.run.params.items())


def test_a_clients_own_model_predicts_and_is_exported(tmp_path: Path) -> None:
    trainer = fit(tmp_path, KeepLocal("head"), data=TinyData(client_test=0.3, client_val=0.2), rounds=3)
    own, network = trainer.run.clients.get(2)["KeepLocal"]["own"], trainer.model_of(2)
    assert network.head.weight.equal(own["model.head.weight"])
    trainer.export(tmp_path / "own.pt", client=2)
    assert torch.load(tmp_path / "own.pt")["head.weight"].equal(own["model.head.weight"])
    found, common = trainer.predict(client=2), trainer.predict()
    outputs = network(held_out_inputs().to(network.head.weight.dtype))
    torch.testing.assert_close(found["probability"], outputs.softmax(1), check_dtype=False, rtol=1e-6, atol=1e-6)
    assert not torch.equal(found["probability"], common["probability"])
    with pytest.raises(ValueError, match=r"client must lie in \[0, 7\]; got 8"):
        trainer.predict(client=8)
    with pytest.raises(
        ValueError, match="client=1 asks for a client's own model, and no method of this run keeps any: leave it out"
    ):
        fit(tmp_path / "plain", rounds=1).model_of(1)


def test_processes_share_the_set_out(tmp_path: Path) -> None:
    """This holds for any number of rows, also if some processes have no row."""
    trainer = fit(tmp_path, **FLOAT)
    run, samples = trainer.run, trainer.run.federation.test
    assert samples is not None

    whole = trainer.predict()["probability"]
    for count in (2, 30):
        parts = [whole[rank:count:3] if rank < count else None for rank in range(3)]
        processes: Any = SimpleNamespace(rank=0, count=3, device=torch.device("cpu"), gather=lambda value, parts=parts: parts)
        evaluator = Evaluator(run.model, run.engine.reader, 4, processes, {}, run.evaluator.own)
        some = Samples(samples.inputs[:count], samples.targets[:count])
        assert torch.equal(evaluator.outputs(run.params, run.buffers, some), whole[:count])


def test_inputs_of_another_form_are_refused(tmp_path: Path) -> None:
    trainer = make_trainer(None, rounds=1, precision="32-true")
    torch.manual_seed(0)
    trainer.prepare(flcog.Classifier(MLP(64, (4,), 10)), Digits(image_size=8))
    grey = np.zeros((5, 8, 8), np.uint8)
    assert (
        len(trainer.predict(inputs=grey)["prediction"]) == len(trainer.predict(inputs=grey.astype(np.int64))["prediction"]) == 5
    )
    for wrong in (np.zeros((5, 1, 8, 8), np.uint8), np.zeros((5, 8, 8), np.float32)):
        with pytest.raises(ValueError, match=r"uint8 \[N, 8, 8, 1\]; got"):
            trainer.predict(inputs=wrong)
    with pytest.raises(ValueError, match="hold numbers from 300 to 300, and the data set stores uint8"):
        trainer.predict(inputs=np.full((5, 8, 8), 300))


def test_predictions_as_files(tmp_path: Path) -> None:
    found = {
        "probability": torch.tensor([[0.25, 0.75], [0.5, 0.5]]),
        "prediction": torch.tensor([1, 0]),
        "target": torch.tensor([1, 1]),
    }
    write_predictions(tmp_path / "p.csv", found, ("cat", "dog"))
    rows = list(csv.reader((tmp_path / "p.csv").open()))
    assert rows[0] == ["sample", "prediction", "target", "probability_cat", "probability_dog"]
    assert rows[1:] == [["0", "dog", "dog", "0.25", "0.75"], ["1", "cat", "dog", "0.5", "0.5"]]
    write_predictions(tmp_path / "p.npz", found)
    with np.load(tmp_path / "p.npz") as arrays:
        assert all((arrays[name] == value.numpy()).all() for name, value in found.items())
    with pytest.raises(ValueError, match=r"\.csv or \.npz"):
        write_predictions(tmp_path / "p.txt", found)


@pytest.mark.parametrize("network", [BatchNormMLP, dropout_network])
def test_exports_load_into_the_plain_network(network: Any, tmp_path: Path) -> None:
    trainer = fit(tmp_path, module=classifier(network=network), **FLOAT)
    expected = outputs_of(trainer.model)
    trainer.export(tmp_path / "model.pt")
    trainer.export(tmp_path / "model.safetensors")
    loaded = importlib.import_module("safetensors.torch").load_file(tmp_path / "model.safetensors")
    for state in (torch.load(tmp_path / "model.pt", weights_only=True), loaded):
        plain = network()
        plain.load_state_dict(state)
        assert torch.equal(outputs_of(plain), expected)


def test_tied_weights_and_what_is_evaluated_are_exported(tmp_path: Path) -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inside, self.last = nn.Linear(6, 6), nn.Linear(6, 3)
            self.again = self.inside

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.last(self.again(self.inside(x)))

    trainer = fit(tmp_path, FedExP(), module=classifier(network=Tied), **FLOAT, eval_every=1)
    trainer.export(tmp_path / "model.safetensors")
    plain = Tied()
    plain.load_state_dict(importlib.import_module("safetensors.torch").load_file(tmp_path / "model.safetensors"))
    assert torch.allclose(outputs_of(plain).softmax(1), trainer.predict()["probability"])


def test_export_says_what_it_cannot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = fit(tmp_path, **FLOAT)
    with pytest.raises(ValueError, match=r"cannot tell the format of .*model.h5: give one of state_dict \(.pt\), safetensors"):
        trainer.export(tmp_path / "model.h5")
    monkeypatch.setitem(__import__("sys").modules, "onnxscript", None)
    with pytest.raises(ValueError, match=r"ONNX needs onnxscript, which is not installed: pip install 'flcog\[export\]'"):
        trainer.export(tmp_path / "model.onnx")
    assert not (tmp_path / "model.onnx").exists()


@pytest.mark.slow
@pytest.mark.parametrize("network", [BatchNormMLP, dropout_network])
def test_onnx_computes_the_same(network: Any, tmp_path: Path) -> None:
    trainer = fit(tmp_path, module=classifier(network=network), **FLOAT)
    trainer.export(tmp_path / "model.onnx")
    reference = importlib.import_module("onnx.reference").ReferenceEvaluator(str(tmp_path / "model.onnx"))
    for count in (1, 30):  # any batch size
        (found,) = reference.run(None, {"inputs": held_out_inputs()[:count].numpy()})
        np.testing.assert_allclose(found, outputs_of(trainer.model)[:count].numpy(), rtol=1e-5, atol=1e-6)


def test_lightning_loads_our_checkpoints(tmp_path: Path) -> None:
    trainer = fit(tmp_path, module=classifier(network=BatchNormMLP), **(FLOAT | {"rounds": 1, "eval_every": 1}))
    for name in ("best", "last"):
        path = trainer.run.directory / f"checkpoints/{name}.ckpt"
        loaded = flcog.Classifier.load_from_checkpoint(path, model=BatchNormMLP())
        assert torch.equal(outputs_of(loaded), outputs_of(trainer.model))
    saved = torch.load(path.with_name("last.ckpt"), weights_only=True)
    assert all(value.data_ptr() == saved["state_dict"][name].data_ptr() for name, value in saved["params"].items()), "stored once"
    with pytest.raises(RuntimeError, match="Unexpected key"):
        flcog.Classifier.load_from_checkpoint(path.with_name("last.ckpt"), model=MLP(6, (3,), 2))


@dataclass(frozen=True)
class Average(Method):
    """Evaluates the mean of the first model and the current one."""

    def init_server(self, params: Any) -> Any:
        return {name: value.clone() for name, value in params.items()}

    def evaluate_at(self, server: Any, params: Any) -> Any:
        return {name: (value + server[name]) / 2 for name, value in params.items()}


def test_the_model_and_its_checkpoints_are_the_evaluated_model(tmp_path: Path) -> None:
    options, module = FLOAT | {"eval_every": 1}, classifier()
    first = {name: value.clone() for name, value in module.state_dict().items()}
    trainer = make_trainer(tmp_path, Average(), **options)
    trainer.fit(module, TinyData())
    weights = {name: (value + first[name]) / 2 for name, value in trainer.run.params.items()}
    assert all(torch.equal(value, weights[name]) for name, value in module.state_dict().items())
    expected = outputs_of(trainer.model)
    loss = float(nn.functional.cross_entropy(expected, torch.arange(30) % 3))
    assert trainer.history[-1]["test/loss"] == pytest.approx(loss, rel=1e-5)
    path = trainer.run.directory / "checkpoints/last.ckpt"
    loaded = flcog.Classifier.load_from_checkpoint(path, model=classifier().model)
    assert torch.equal(outputs_of(loaded), expected)
    saved = torch.load(path, weights_only=True)
    assert all(torch.equal(saved["params"][name], value) for name, value in trainer.run.params.items()), (
        "a run resumes from these"
    )
    for callbacks in ([Average()], []):
        figures = make_trainer(None, *callbacks, **options).test(classifier(), TinyData(), ckpt_path=str(path), verbose=False)
        assert figures["test/loss"] == trainer.history[-1]["test/loss"]
    assert trainer.test(verbose=False)["test/loss"] == trainer.history[-1]["test/loss"]
    assert torch.equal(outputs_of(module), expected)


@pytest.mark.parametrize(("trained", "tested"), [([Average()], [Average(), ClipGradient()]), ([], [Average()])])
def test_a_checkpoint_has_the_same_score_with_another_list_of_methods(trained: Any, tested: Any, tmp_path: Path) -> None:
    trainer = fit(tmp_path, *trained, **FLOAT | {"rounds": 1, "eval_every": 1})
    path = trainer.run.directory / "checkpoints/best.ckpt"
    figures = make_trainer(None, *tested, **FLOAT).test(classifier(), TinyData(), ckpt_path=str(path), verbose=False)
    assert figures["test/loss"] == trainer.history[-1]["test/loss"]


@pytest.mark.parametrize("bare", [False, True])
def test_the_class_and_its_arguments_are_in_the_checkpoint(bare: bool, tmp_path: Path) -> None:
    """The command line knows the class and arguments, also those for a bare network, which the run wraps in a Classifier."""
    network = {"class_path": "flcog.models.MLP", "init_args": {"in_features": 6, "hidden": [8], "num_classes": 3}}
    module = {"class_path": "flcog.Classifier", "init_args": {"model": network}}
    trainer = make_trainer(tmp_path, **FLOAT)
    trainer.config = {"model": network if bare else module}
    trainer.fit(MLP(6, (8,), 3) if bare else classifier(), TinyData())
    loaded = flcog.Classifier.load_from_checkpoint(trainer.run.directory / "checkpoints/last.ckpt")
    assert torch.equal(outputs_of(loaded), outputs_of(trainer.model))


def test_a_users_own_module_is_loaded_too(tmp_path: Path) -> None:
    class Own(Plain):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Linear(6, width), nn.Tanh(), nn.Linear(width, 3))

    own: Any = Own(4)
    trainer = fit(tmp_path, module=own, **FLOAT)
    loaded = Own.load_from_checkpoint(trainer.run.directory / "checkpoints/last.ckpt", width=4)
    assert torch.equal(outputs_of(loaded.net), outputs_of(own.net))


class Frozen(Plain):
    """A network with a frozen part."""

    def __init__(self, width: int, strict: bool = True) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Sequential(nn.Linear(6, width).requires_grad_(False), nn.BatchNorm1d(width), nn.Linear(width, 3))
        self.net[1].weight.requires_grad_(False)
        self.strict_loading = strict

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD([{"params": self.net[1].parameters(), "lr": 0.01}, {"params": self.net[2].parameters()}], lr=0.1)


def test_a_checkpoint_has_frozen_weights_too(tmp_path: Path) -> None:
    own, sparing = Frozen(4), Frozen(4, strict=False)
    path = fit(tmp_path, module=own, **FLOAT).run.directory / "checkpoints/last.ckpt"  # type: ignore[arg-type]
    loaded = Frozen.load_from_checkpoint(path)
    assert torch.equal(outputs_of(loaded.net), outputs_of(own.net))
    path = fit(tmp_path, module=sparing, **FLOAT).run.directory / "checkpoints/last.ckpt"  # type: ignore[arg-type]
    saved = torch.load(path, weights_only=True)["state_dict"]
    assert {"net.0.weight", "net.1.weight"}.isdisjoint(saved) and "net.1.bias" in saved
    with pytest.warns(UserWarning, match="not in the checkpoint"):
        Frozen.load_from_checkpoint(path)


def test_pefts_names_are_those_of_the_network(tmp_path: Path) -> None:
    """This holds if a user's module has the network in an attribute, and if the network has a part named body."""
    safetensors = pytest.importorskip("safetensors.torch")

    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.top = nn.Linear(6, 4), nn.Linear(4, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.top(self.body(x))

    class Own(Plain):
        def __init__(self) -> None:
            super().__init__()
            self.net = LoRA(Network(), rank=1, targets=["body"])

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD([p for p in self.parameters() if p.requires_grad], lr=0.1)

    for number, module in enumerate((Own(), flcog.Classifier(LoRA(Network(), rank=1, targets=["body"])))):
        trainer = fit(tmp_path, module=module, **FLOAT)  # type: ignore[arg-type]
        trainer.export(tmp_path / str(number), "peft")
        names = set(safetensors.load_file(tmp_path / str(number) / "adapter_model.safetensors"))
        assert names == {f"base_model.model.body.lora_{side}.weight" for side in "AB"}
        assert json.loads((tmp_path / str(number) / "adapter_config.json").read_text())["target_modules"] == ["body"]


def test_hyperparameters_that_a_module_saves_construct_it_again(tmp_path: Path) -> None:
    class Own(L.LightningModule):
        def __init__(self, width: int, rates: dict[str, float], loss: nn.Module) -> None:
            super().__init__()
            self.save_hyperparameters(logger=False)
            self.net, self.loss = nn.Linear(6, width), loss

        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            return self.loss(self.net(batch[0]), batch[1])

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=self.hparams["rates"]["lr"])

    with pytest.warns(UserWarning) as warned:
        trainer = fit(tmp_path, module=Own(3, {"lr": 0.5}, nn.CrossEntropyLoss()), **FLOAT)
    assert any("do not store hyper_parameters.loss" in str(each.message) for each in warned)
    loaded = Own.load_from_checkpoint(trainer.run.directory / "checkpoints/last.ckpt", loss=nn.CrossEntropyLoss())
    assert loaded.hparams["rates"] == {"lr": 0.5}
    assert torch.equal(outputs_of(loaded.net), outputs_of(trainer.model.net))  # type: ignore[arg-type]


def test_plots_have_whole_rounds_and_what_was_asked_for(tmp_path: Path) -> None:
    trainer = fit(tmp_path, eval_every=1)
    score, loss = trainer.plot().axes
    accuracy = score.get_lines()[0]
    assert list(accuracy.get_xdata()) == [1, 2, 3]
    assert list(accuracy.get_ydata()) == [row["test/accuracy"] for row in trainer.history]
    assert {text.get_text() for text in loss.get_legend().get_texts()} == {"test/loss", "train/loss"}
    assert trainer.plot("drift/norm")._repr_png_()[:4] == b"\x89PNG"
    left, right = trainer.plot("test/accuracy", "train/loss").axes
    assert list(right.get_lines()[0].get_ydata()) == [row["train/loss"] for row in trainer.history]
    assert left.bbox.bounds == right.bbox.bounds and left.get_lines()[0].get_color() != right.get_lines()[0].get_color()
    with pytest.raises(ValueError, match="no column 'nothing' in this run"):
        trainer.plot("nothing")


@pytest.mark.parametrize(("last", "share"), [(0.75, True), (75.0, False)])
def test_plots_of_scores_in_percent_stay_as_they_are(last: float, share: bool) -> None:
    (axes,) = history_figure([{"round": 1, "test/accuracy": 0.25}, {"round": 2, "test/accuracy": last}], ["test/accuracy"]).axes
    assert isinstance(axes.yaxis.get_major_formatter(), PercentFormatter) == share


def test_reprs_are_for_people(tmp_path: Path) -> None:
    data = TinyData(client_val=0.3)
    trainer = make_trainer(tmp_path, FedProx(mu=0.5), eval_every=1)
    assert "  methods     FedProx(mu=0.5)" in repr(trainer) and "result" not in repr(trainer)
    trainer.fit(classifier(), data)
    assert f"test accuracy {trainer.history[-1]['test/accuracy']:.4f}, loss" in repr(trainer)
    assert f"partition {data.federation.split.hash}" in repr(data.federation)
    assert "<td" in trainer._repr_html_() and "held out" in data._repr_html_()


NOTEBOOK = """
import flcog, torch
from flcog.datamodules import Digits
trainer = flcog.FederatedTrainer(rounds=8, local_steps=1, logger=False, accelerator="cpu", default_root_dir={root!r})
trainer.fit(flcog.Classifier(flcog.models.MLP(64, (4,), 10)), Digits(image_size=8, num_clients=3))
"""


@pytest.mark.slow
def test_in_a_notebook(tmp_path: Path) -> None:
    """There is one bar, which is updated in place, and a cell shows the value of its last line."""
    nbformat, nbclient = importlib.import_module("nbformat"), importlib.import_module("nbclient")
    cells = [NOTEBOOK.format(root=str(tmp_path)), "trainer", "trainer.plot()"]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    nbclient.NotebookClient(notebook, timeout=120, kernel_name="python3").execute()
    outputs = [cell["outputs"] for cell in notebook["cells"]]
    pages = [json.dumps(output.get("data", {}).get("text/html", "")) for output in outputs[0]]
    bars = [page for page in pages if "<progress" in page]
    assert len(bars) == 1 and "round 8/8" in bars[0] and "train loss" in bars[0]
    assert "8 of them done" in outputs[1][-1]["data"]["text/html"]
    assert "image/png" in outputs[2][-1]["data"]
