"""The job for other frameworks: the program of the loss, and the optimiser."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from against import job_of
from engine.test_patches import Pictures
from harness import make_trainer
from program import program_of
from reading import reading
from torch import nn
from torch.utils import _pytree as pytree

import flcog
from benchmarks.bench_jobs import prepared
from flcog.models import ResNet18, SimpleCNN, TextCNN

NETWORKS: dict[str, tuple[Callable[[], nn.Module], torch.Tensor]] = {
    "SimpleCNN": (partial(SimpleCNN, 1), torch.randn(4, 1, 28, 28)),
    "BatchNorm": (partial(ResNet18, stem="3x3"), torch.randn(4, 3, 16, 16)),
    "TextCNN": (partial(TextCNN, vocab_size=20, dropout=0.0), torch.randint(20, (4, 12))),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_a_program_computes_the_loss_without_flcog(name: str, tmp_path: Path) -> None:
    make, inputs = NETWORKS[name]
    torch.manual_seed(0)
    module, targets = flcog.Classifier(make()), torch.tensor([0, 1, 2, 3])
    leaves, structure = pytree.tree_flatten((inputs, targets))
    program = program_of(module, leaves, structure)
    file = tmp_path / "program.pt"
    torch.save(program, file)
    assert b"flcog" not in file.read_bytes()
    read = torch.load(file, weights_only=False)
    for rows in (slice(0, 4), slice(1, 4)):  # the last batch of a pass is smaller
        loss = nn.functional.cross_entropy(module.train()(inputs[rows]), targets[rows])
        loss.backward()
        written = read.train()(*(leaf[rows] for leaf in leaves))
        written.backward()
        torch.testing.assert_close(written, loss)
    gradients = {f"module.{parameter}": value.grad for parameter, value in module.named_parameters()}
    for parameter, value in read.named_parameters():
        torch.testing.assert_close(value.grad, gradients[parameter])
    assert len(gradients) == len(list(read.parameters()))
    assert not any(node.target in (getattr, "size") for node in read.graph.nodes)  # shapes were queried once, during tracing


def test_dropout_is_torchs_in_a_program() -> None:
    module = flcog.Classifier(SimpleCNN(1))
    module.model.dropout = flcog.models.Dropout(0.5)
    leaves, structure = pytree.tree_flatten((torch.randn(2, 1, 28, 28), torch.tensor([0, 1])))
    program = program_of(module, leaves, structure)
    assert any(isinstance(layer, nn.Dropout) for layer in program.modules()) and program(*leaves) != program(*leaves)
    assert isinstance(module.model.dropout, flcog.models.Dropout)


def test_a_network_that_cannot_be_written_down_is_named() -> None:
    class Asks(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.as_tensor(np.asarray(x))

    leaves, structure = pytree.tree_flatten((torch.randn(2, 3), torch.tensor([0, 1])))
    with pytest.raises(ValueError, match="Classifier's network cannot be written down for other frameworks"):
        program_of(flcog.Classifier(Asks()), leaves, structure)


def test_the_job_has_the_optimiser_and_what_was_set_of_it() -> None:
    trainer, batches, _ = prepared(partial(torch.optim.SGD, lr=0.05, momentum=0.9, nesterov=True))
    job = job_of(trainer, batches)
    assert (job.optimizer, job.options, job.cohort, job.device) == (
        "SGD",
        {"lr": 0.05, "momentum": 0.9, "nesterov": True},
        5,
        "cpu",
    )
    adam = job_of(prepared(partial(torch.optim.AdamW, lr=0.001))[0], batches)
    assert (adam.optimizer, adam.options) == ("AdamW", {"lr": 0.001})
    assert type(adam.new_optimizer([nn.Parameter(torch.zeros(1))])) is torch.optim.AdamW


def test_what_others_cannot_train_is_refused() -> None:
    class Signs(torch.optim.SGD):
        pass

    trainer, batches, _ = prepared(partial(Signs, lr=0.1))
    with pytest.raises(
        ValueError,
        match=r"the other frameworks need an optimizer of torch.optim with one group of parameters; got Signs with 1",
    ):
        job_of(trainer, batches)
    trainer, batches, _ = prepared(precision="bf16-mixed")
    with pytest.raises(
        ValueError, match=r"trainer.precision=bf16-mixed is not supported by the other frameworks; give 32-true or 64-true"
    ):
        job_of(trainer, batches)


@pytest.mark.slow
def test_reading_images(capsys: pytest.CaptureFixture[str]) -> None:
    reading(make_trainer(None, clients_per_round=2), flcog.Classifier(SimpleCNN(1, 3)), Pictures(4, batch_size=5), repeats=1)
    assert "reading 48 images" in capsys.readouterr().out
