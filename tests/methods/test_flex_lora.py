"""FlexLoRA against its paper with matrices of different ranks, its decomposition against torch's, and the bytes that it counts."""

from functools import partial

import pytest
import torch
from contracts.case import Case
from harness import SGD, TinyData, adapted, train
from reference import flex_lora

import flcog
from flcog.callbacks import FedProx, FedSAM, FlexLoRA, GradientNoise
from flcog.callbacks.lora import factors
from flcog.method import Method
from flcog.models import LeNet, LoRA

RANKS = [1, 4, 2]

CASES: dict[str, Case] = {
    "FlexLoRA": Case(FlexLoRA(ranks=RANKS), partial(flex_lora.run, ranks=RANKS), module=adapted, random=True),
}


def test_the_best_approximation_of_the_mean_change() -> None:
    """By Eckart and Young, only the smallest singular values are cut off, and none if the rank suffices."""
    changes = [(0.2, torch.randn(7, 2), torch.randn(2, 5)), (0.8, torch.randn(7, 1), torch.randn(1, 5))]
    total = sum(weight * b.double() @ a.double() for weight, b, a in changes)
    b, a = factors(changes, torch.zeros(3, 5).double())
    torch.testing.assert_close(b @ a, total)
    torch.testing.assert_close(a @ a.T, torch.eye(3).double())
    b, a = factors(changes, torch.zeros(2, 5).double())
    assert torch.linalg.matrix_norm(total - b @ a, 2) == pytest.approx(float(torch.linalg.svdvals(total)[2]))


def test_directions_that_no_client_used_stay_as_they_were() -> None:
    old = torch.randn(4, 5)
    b, a = factors([(1.0, torch.randn(7, 2), torch.randn(2, 5))], old)
    assert torch.equal(a[2:], old[2:]) and not b[:, 2:].any() and b[:, :2].norm() > 0
    unmoved = factors([(1.0, torch.zeros(7, 2), torch.randn(2, 5))], old)
    assert torch.equal(unmoved[1], old) and not unmoved[0].any()


@pytest.mark.parametrize("executor", ["loop", "vmap"])
def test_only_a_clients_own_rank_is_counted(executor: str) -> None:
    trainer = train(FlexLoRA(ranks=RANKS), module=adapted(), rounds=1, clients_per_round=8, executor=executor)
    full = train(module=adapted(), rounds=1, clients_per_round=8).ledger
    left_out = sum(4 - RANKS[client % 3] for client in range(8)) * (6 + 8) * 8
    assert full.up["model"] - trainer.ledger.up["model"] == left_out
    assert full.down["model"] - trainer.ledger.down["model"] == left_out


def test_convolutions_are_decomposed_as_matrices() -> None:
    class Images(TinyData):
        def load(self):  # type: ignore[no-untyped-def]
            splits = super().load()
            train = splits.train
            return flcog.Splits(flcog.Samples(train.inputs[:, :1].reshape(-1, 1, 1, 1).repeat(1, 8, 8, 1), train.targets))

    network = LoRA(LeNet(1, 3, image_size=8, channels=(4,), kernel_size=3, hidden=(8,)), rank=2, targets=["convolutions"])
    trainer = train(FlexLoRA(ranks=[1, 2]), module=flcog.Classifier(network, SGD), data=Images(), rounds=2)
    assert trainer.state["convolutions.0.A"].shape == (2, 1, 3, 3)
    assert all(value.isfinite().all() for value in trainer.state.values())


@pytest.mark.parametrize("other", [FedProx(mu=1.0), FedSAM(), GradientNoise(sigma=1.0)], ids=lambda method: method.name)
@pytest.mark.parametrize("first", [True, False])
@pytest.mark.filterwarnings("ignore:FlexLoRA is listed after")
def test_a_client_sends_nothing_beyond_its_rank(other: Method, first: bool) -> None:
    """This holds in either order, although the other methods add to losses and gradients."""
    flex = FlexLoRA(ranks=[1])
    trainer = train(*((flex, other) if first else (other, flex)), module=adapted(), rounds=2, local_steps=2)
    uploads = trainer.collect()[0].individual["FlexLoRA"]
    for upload in uploads:
        b, a = (trainer.params[f"model.hidden.0.{part}"] + upload.delta[f"model.hidden.0.{part}"] for part in "BA")
        assert b[:, :1].norm() > 0 and not b[:, 1:].any() and not a[1:].any()
