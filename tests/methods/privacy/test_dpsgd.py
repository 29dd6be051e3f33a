"""DP-SGD in each client: gradients of samples, noise, epsilon and refused models."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from contracts.case import Case, Refusals
from harness import MOMENTUM, ODD_BATCHES, SGD, BatchNormMLP, TinyData, classifier, distance, fit, train
from reference import dpsgd
from scipy import stats

import flcog
from flcog.callbacks import DPSGD, FedDisco, FedProx, FedSAM
from flcog.callbacks.privacy import dpsgd as implementation
from flcog.datamodules import ArrayData
from flcog.models import SimpleCNN

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
REFUSED: Refusals = {
    DPSGD: [
        ({"clip": 0.0}, "clip must be positive and finite; got 0.0"),
        ({"noise_multiplier": -1.0}, "noise_multiplier must lie in [0, inf); got -1.0"),
        ({"delta": 1.0}, "delta must lie in (0, 1); got 1.0"),
    ]
}


@pytest.fixture(autouse=True)
def quick_accountant(monkeypatch: pytest.MonkeyPatch) -> None:
    """One unit of epsilon for each use of a sample."""
    monkeypatch.setattr(implementation, "epsilon", lambda sampling, noise, uses, delta: float(uses))


def noise(local_steps: int = 1, **options: Any) -> torch.Tensor:
    """The noise in the change of a client's model, whose gradient is clipped to nearly nothing, [rounds, parameters]."""
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


def test_the_noise_of_the_sum_has_its_size_and_is_independent() -> None:
    values = noise()
    assert float(values.std()) == pytest.approx(1.0, rel=0.05) and len(values.round(decimals=9).unique()) == values.numel()
    assert float(noise(local_steps=2).std()) == pytest.approx(2**0.5, rel=0.05), "each step has noise of its own"
    assert stats.kstest(values.flatten().numpy(), "norm").pvalue > 1e-4
    correlations = torch.corrcoef(values) - torch.eye(len(values))
    assert float(correlations.abs().max()) < 0.5
    assert not torch.equal(noise(), values), "and is drawn from the system's entropy"
    assert torch.equal(noise(repeatable=True), noise(repeatable=True))


def test_epsilon_counts_each_pass_and_the_training_loss_is_withheld(tmp_path: Path) -> None:
    method = DPSGD(delta=0.01)
    rows = fit(tmp_path, method, rounds=2, local_epochs=2, local_steps=None).rows
    assert [row["privacy/epsilon_of_samples"] for row in rows] == [2.0, 4.0]
    assert not any(name.startswith("train/") for name in rows[0]) and "drift/norm" in rows[0]
    with pytest.raises(ValueError, match="delta must lie in"):
        fit(tmp_path / "large", DPSGD(delta=0.1), rounds=1)


def test_batch_normalisation_and_other_readers_of_samples_are_refused() -> None:
    with pytest.raises(ValueError, match=r"DPSGD: model\.1 is a BatchNorm layer, which mixes the samples of a batch"):
        train(NO_NOISE(), module=classifier(network=BatchNormMLP), rounds=1)
    for other, reason in ((FedSAM(), "it takes further gradients"), (FedDisco(), "it reads samples outside the gradient")):
        with pytest.raises(ValueError, match=f"DPSGD and {other.name} cannot be combined: {reason}"):
            train(NO_NOISE(), other, rounds=1)


@pytest.mark.slow
def test_convolutions_have_gradients_of_samples_in_every_executor() -> None:
    torch.manual_seed(0)
    images = {"train_inputs": torch.randn(24, 1, 28, 28), "train_targets": torch.arange(24) % 10}
    images |= {name.replace("train", "test"): value for name, value in images.items()}
    states = []
    for executor in ("loop", "vmap"):
        torch.manual_seed(0)
        module = flcog.Classifier(SimpleCNN(1, 10), optimizer=SGD)
        data = ArrayData(**images, layout="NCHW", num_clients=3, batch_size=4)
        trainer = flcog.FederatedTrainer(
            callbacks=[NO_NOISE(clip=0.5), FedProx()], rounds=1, local_steps=2, clients_per_round=1.0, executor=executor
        )
        trainer.prepare(module, data)
        trainer.train_round()
        states.append(trainer.run.params)
    assert distance(*states) < 1e-5
