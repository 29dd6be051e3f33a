"""DP-SGD in each client: gradients of samples, noise, epsilon and refused models."""

from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from contracts.case import Case
from harness import MOMENTUM, NUM_CLASSES, NUM_FEATURES, ODD_BATCHES, BatchNormMLP, TinyData, classifier, distance, fit, train
from reference import dpsgd
from scipy import stats
from torch import nn

from flcog.callbacks import (
    DPSGD,
    ClassAccuracy,
    ClientFairness,
    FedDecorr,
    FedDisco,
    FedGen,
    FedSAM,
    Oort,
    PowerOfChoice,
    Stragglers,
    TrainingScores,
)
from flcog.core.types import Batch, Params
from flcog.data.batching import Batching
from flcog.method import Gradient

NO_NOISE = partial(DPSGD, noise_multiplier=0.0, repeatable=True)

CASES: dict[str, Case] = {
    "DPSGD": Case(NO_NOISE(clip=0.5), partial(dpsgd.run, clip=0.5), NO_NOISE(clip=1e9)),
    "DPSGD-padded": Case(
        NO_NOISE(clip=0.5),
        partial(dpsgd.run, clip=0.5),
        NO_NOISE(clip=1e9),
        MOMENTUM,
        data=ODD_BATCHES,
        options={"local_epochs": 2},
    ),
    "DPSGD-noise": Case(
        DPSGD(clip=0.5, delta=0.01, repeatable=True), None, no_reference="noise: this file tests its law", random=True
    ),
}


pytestmark = pytest.mark.usefixtures("quick_accountant")


def noise(local_steps: int = 1, **options: Any) -> torch.Tensor:
    """The noise in the change of a client's model, [rounds, parameters]. The gradient is clipped to nearly nothing."""
    method = DPSGD(clip=1e-9, noise_multiplier=1e9, delta=0.01, **options)
    data = TinyData(batch_size=64)  # all samples in one step
    trainer = train(method, data=data, rounds=1, clients_per_round=1, local_steps=local_steps)
    before, moved = trainer.state, []
    for _ in range(12):
        trainer.train_round()
        rows = len(trainer.recorded[-1][0].batches[0][0])
        change = torch.cat([(value - before[name]).flatten() for name, value in trainer.state.items()])
        moved.append(change * rows / 0.1)
        before = trainer.state
    return torch.stack(moved)


@pytest.mark.slow
def test_the_noise_of_the_sum_has_its_size_and_is_independent() -> None:
    values = noise(repeatable=True)
    assert float(values.std()) == pytest.approx(1.0, rel=0.05) and len(values.round(decimals=9).unique()) == values.numel()
    assert float(noise(local_steps=2, repeatable=True).std()) == pytest.approx(2**0.5, rel=0.05), "each step has noise of its own"
    assert stats.kstest(values.flatten().numpy(), "norm").pvalue > 1e-4
    correlations = torch.corrcoef(values) - torch.eye(len(values))
    assert float(correlations.abs().max()) < 0.5
    assert torch.equal(noise(repeatable=True), values)
    assert not torch.equal(noise(), noise()), "secret noise is drawn from the system's entropy"


@pytest.mark.slow
def test_epsilon_counts_each_pass_and_the_training_loss_is_withheld(tmp_path: Path) -> None:
    method = DPSGD(delta=0.01)
    rows = fit(tmp_path, method, rounds=2, local_epochs=2, local_steps=None).rows
    assert [row["privacy/epsilon_of_samples"] for row in rows] == [2.0, 4.0]
    assert not any(name.startswith("train/") for name in rows[0]) and "drift/norm" in rows[0]
    rows = fit(tmp_path / "steps", method, rounds=2, local_steps=3).rows
    assert [row["privacy/epsilon_of_samples"] for row in rows] == [5.0, 10.0]
    with pytest.raises(ValueError, match="delta must lie in"):
        fit(tmp_path / "large", DPSGD(delta=0.1), rounds=1)


@pytest.mark.parametrize(("samples", "batch_size"), [(10, 9), (10, 4), (7, 7), (50, 4), (3, 8)])
def test_epsilon_covers_a_sample_that_a_batch_contains_twice(samples: int, batch_size: int) -> None:
    """A sample that is m times in a batch moves the sum by up to m C.

    This adds m^2 to the square of the Gaussian mechanism's sensitivity.
    """
    rng, worst = np.random.default_rng(0), 0
    for local_steps in range(1, 8):
        starts, sizes, passes = Batching(batch_size, local_steps, None).layout(samples, local_steps)
        for _ in range(300):
            stream = np.concatenate([rng.permutation(samples) for _ in range(passes)])
            counts = [
                np.bincount(stream[start : start + size], minlength=samples) for start, size in zip(starts, sizes, strict=True)
            ]
            spent = int(np.square(counts).sum(0).max())
            assert spent <= DPSGD()._uses(local_steps, None)
            worst = max(worst, spent - local_steps)
    assert worst > 0 or (samples, batch_size) != (10, 9), "one mechanism for each step would not cover it"


def test_the_server_learns_no_loss() -> None:
    trainer = train(NO_NOISE(), rounds=1)
    seen = []
    clients = trainer.run.engine.clients
    original = clients.train

    def spy(received: Any, tasks: Any) -> Any:
        for reply in original(received, tasks):
            seen.extend(reply.envelope.measured["loss"].tolist())
            yield reply

    clients.train = spy
    trainer.train_round()
    assert seen and not any(seen)


@pytest.mark.slow
def test_columns_of_observers_that_read_samples_are_withheld(tmp_path: Path) -> None:
    data = TinyData(client_test="reweighted")
    observers = TrainingScores(), ClassAccuracy(), ClientFairness()
    rows = fit(tmp_path, DPSGD(delta=0.01), *observers, data=data, rounds=2, eval_every=1).rows
    assert "test/class_accuracy_mean" in rows[-1]
    for leak in ("training/", "heterogeneity/", "class_accuracy_head", "class_accuracy_tail", "client_"):
        assert not any(leak in name for name in rows[-1])


def test_batch_normalisation_and_other_readers_of_samples_are_refused() -> None:
    with pytest.raises(ValueError, match=r"DPSGD: model\.1 is a BatchNorm layer, which mixes the samples of a batch"):
        train(NO_NOISE(), module=classifier(network=BatchNormMLP), rounds=1)
    outside = "it reads samples outside the gradient"
    for other, reason in (
        (FedSAM(), "it takes further gradients"),
        (FedDecorr(), "it compares the samples of a batch"),
        (FedDisco(), outside),
        (FedGen(), outside),
        (Oort(), "it selects clients by the losses of their training, which they send as 0. Remove one"),
        (PowerOfChoice(), outside),
        (Stragglers(), "its clients take more steps"),
    ):
        with pytest.raises(ValueError, match=f"DPSGD and {other.name} cannot be combined: {reason}"):
            train(NO_NOISE(), other, rounds=1)


@pytest.mark.parametrize("executor", ["loop", "vmap"])
def test_a_resumed_run_draws_the_same_dropout(executor: str, tmp_path: Path) -> None:
    def run(place: str, rounds: int, ckpt_path: str | None = None) -> Any:
        module = classifier(network=lambda: nn.Sequential(nn.Dropout(0.5), nn.Linear(NUM_FEATURES, NUM_CLASSES)))
        options: dict[str, Any] = {"module": module, "rounds": rounds, "ckpt_path": ckpt_path, "executor": executor}
        return fit(tmp_path / place, DPSGD(delta=0.01, repeatable=True), **options)

    whole, half = run("whole", 2), run("half", 1)
    torch.manual_seed(1)
    assert distance(run("half", 2, str(half.run_dir)).state, whole.state) == 0


def test_dropout_differs_between_the_samples_of_a_batch() -> None:
    def dropped(params: Params, batch: Batch) -> Gradient:
        return Gradient({"w": nn.functional.dropout(params["w"])}, {}, torch.tensor(0.0))

    gradient = NO_NOISE(clip=100.0).wrap_gradient(dropped, SimpleNamespace(draws={"key": torch.tensor(0)}, step=0))
    mean = gradient({"w": torch.ones(1000)}, Batch(torch.zeros(2, 1), torch.zeros(2))).values["w"]
    assert len(mean.unique()) == 3, "none, one or both samples keep a number"


class Remembering(nn.Linear):
    """A linear network that keeps the inputs of its last batch and the number of its batches."""

    def __init__(self) -> None:
        super().__init__(NUM_FEATURES, NUM_CLASSES)
        self.register_buffer("seen", torch.zeros(NUM_FEATURES))
        self.register_buffer("largest", torch.tensor(0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen = x.mean(0).detach()
        self.largest = x.abs().max().ceil().long()
        return super().forward(x)


@pytest.mark.parametrize("executor", ["loop", "vmap"])
def test_buffers_of_a_module_send_no_samples(executor: str) -> None:
    sent = [train(*methods, module=classifier(network=Remembering), executor=executor).buffers for methods in ((), (NO_NOISE(),))]
    assert all(value.any() for value in sent[0].values())
    assert not any(value.any() for value in sent[1].values())
