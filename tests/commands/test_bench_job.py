"""``flcog bench``: the bare loop, and the job for other frameworks with its batches, the program of the loss and the optimiser."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from engine.test_patches import Pictures
from fake_device import computing_there, waits
from harness import TinyData, assert_close, classifier, make_trainer
from torch import nn
from torch.utils import _pytree as pytree

import flcog
from commands.bench_jobs import prepared, reference
from flcog.commands.bench.against import job_of
from flcog.commands.bench.bare import BareLoop, batches_of
from flcog.commands.bench.command import bench
from flcog.commands.bench.contenders.job import Batches
from flcog.commands.bench.program import program_of
from flcog.models import MLP, ResNet18, SimpleCNN, TextCNN


def test_clients_make_the_batches_that_the_engine_would() -> None:
    """The batches have the engine's sizes, contain each sample once per pass, and differ in the next round."""
    trainer, batches, _ = prepared(local_epochs=2)
    partition, engine = trainer.run.federation.partition, trainer.run.engine
    for k in range(batches.num_clients):
        own = trainer.run.federation.train.inputs[partition.client(k)]
        made = [inputs for inputs, _ in batches.of(3, k)]
        _, sizes, passes = engine.batching.layout(len(own), engine.batching.num_steps(len(own)))
        assert [len(inputs) for inputs in made] == sizes.tolist() and passes == 2
        for half in torch.cat(made).split(len(own)):
            assert torch.equal(half.sort(0).values, own.sort(0).values)
    again, other = (torch.cat([inputs for inputs, _ in batches.of(round, 3)]) for round in (3, 4))
    assert torch.equal(again, torch.cat([inputs for inputs, _ in batches.of(3, 3)])) and not torch.equal(again, other)


def test_passes_that_drop_their_last_batch() -> None:
    batches = Batches([torch.arange(7.0)], [0, 7], {7: ([0, 3, 7, 10], [3, 3, 3, 3], 2)})
    made = [leaf.tolist() for (leaf,) in batches.of(0, 0)]
    order = batches.order(0, 0).tolist()
    assert made == [order[0:3], order[3:6], order[7:10], order[10:13]]


def test_the_bare_loop_is_fedavg() -> None:
    trainer, batches, structure = prepared()
    bare = BareLoop(trainer, batches, structure)
    expected = reference(trainer, batches, rounds=2)
    for round in range(2):
        bare.round(round, trainer.sample(round))
    assert_close({name.removeprefix("model."): value for name, value in bare.server.state_dict().items()}, expected, rtol=1e-5)


def test_a_module_with_steps_of_its_own_has_no_bare_loop() -> None:
    class Own(flcog.Classifier):
        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            return self(batch[0]).square().mean()

    trainer = make_trainer(None)
    trainer.prepare(Own(MLP(6, (8,), 3)), TinyData())
    with pytest.raises(ValueError, match="Own has its own training_step"):
        BareLoop(trainer, *batches_of(trainer))


def test_the_bare_loop_accumulates_no_gradients() -> None:
    trainer = make_trainer(None, accumulate_grad_batches=2)
    trainer.prepare(classifier(), TinyData())
    with pytest.raises(ValueError, match="a step after every batch; got accumulate_grad_batches=2: set it to 1"):
        BareLoop(trainer, *batches_of(trainer))


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


def test_inputs_by_name() -> None:
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 2)

        def forward(self, words: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            return self.layer(words * mask)

    module = flcog.Classifier(Named())
    inputs, targets = {"mask": torch.rand(4, 3), "words": torch.randn(4, 3)}, torch.tensor([0, 1, 0, 1])
    leaves, structure = pytree.tree_flatten((inputs, targets))
    loss = program_of(module, leaves, structure)(*leaves)
    torch.testing.assert_close(loss, nn.functional.cross_entropy(module(inputs), targets))


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
        match=r"against: the other frameworks need an optimizer of torch.optim with one group of parameters; got Signs with 1",
    ):
        job_of(trainer, batches)
    trainer, batches, _ = prepared(precision="bf16-mixed")
    with pytest.raises(
        ValueError, match=r"trainer.precision=bf16-mixed is not supported by the other frameworks; give 32-true or 64-true"
    ):
        job_of(trainer, batches)


@pytest.mark.slow
def test_an_accelerator_is_timed_too(capsys: pytest.CaptureFixture[str]) -> None:
    """The images are on the accelerator; the DataLoader in the comparison reads them one by one on the CPU."""
    with computing_there():
        waits.clear()
        trainer = make_trainer(None, precision="32-true", clients_per_round=2, local_steps=1)
        bench(trainer, flcog.Classifier(SimpleCNN(1, 3)), Pictures(4, batch_size=5), repeats=1, seconds=0)
    printed = capsys.readouterr().out
    assert "reading 48 images" in printed
    assert waits["the end of all work"] > 0
