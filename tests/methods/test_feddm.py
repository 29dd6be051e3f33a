"""FedDM against its paper: its matching loss, its messages, its accuracy, and when its images diverge."""

from typing import Any

import pytest
import torch
from contracts.case import Case
from harness import MOMENTUM, NUM_CLASSES, ODD_BATCHES, RAGGED, Clusters, TinyData, assert_close, classifier, problem_of, train
from reference import feddm

from flcog.callbacks import Ditto, FedDM, GradientNoise
from flcog.callbacks.feddm import class_means, perturb
from flcog.method import Method
from flcog.server.aggregate import BadUpdate

pytestmark = pytest.mark.filterwarnings("error")


FEDDM = FedDM(images_per_class=2, image_lr=0.5, rho=0.5, server_epochs=5, server_batch_size=7, server_lr=0.1)


CASES: dict[str, Case] = {
    "FedDM": Case(FEDDM, None, data=ODD_BATCHES, options=RAGGED, random=True, no_reference="with rho = 0 it has one below"),
}


@pytest.mark.parametrize("executor", ["loop", "vmap"])
def test_feddm_without_perturbation_against_the_paper(executor: str) -> None:
    server = {"lr": 0.1, "momentum": 0.8, "weight_decay": 1e-2}
    method = FedDM(
        images_per_class=2, image_lr=0.5, image_momentum=0.6, rho=0.0, server_epochs=4,
        server_lr=0.1, server_momentum=0.8, server_weight_decay=1e-2,
    )  # fmt: skip
    setting: dict[str, Any] = {"data": ODD_BATCHES(), "executor": executor} | RAGGED
    trainer = train(method, module=classifier(MOMENTUM), **setting)
    starts = []
    for works in trainer.works:
        starts.append([])
        for work in works:
            images, present = work.draws()[0]["images"], work.draws()[0]["present"]
            assert torch.equal(present > 0, trainer.run.federation.label_counts(work.client) > 0)
            own = trainer.run.federation.train.inputs[trainer.run.federation.partition.client(work.client)].double()
            labels = trainer.run.federation.train.targets[trainer.run.federation.partition.client(work.client)]
            for label in present.nonzero().flatten().tolist():
                of_class = own[labels == label]
                matches = (images[label][:, None] == of_class).all(2)
                assert matches.any(1).all() and (len(of_class) < 2 or matches.any(0).sum() == 2)
            starts[-1].append({label: images[label] for label in present.nonzero().flatten().tolist()})
    problem = problem_of(trainer, classifier(MOMENTUM), MOMENTUM)
    state = feddm.run(problem, starts, 0.5, 0.6, server | {"epochs": 4})
    assert_close(trainer.state, state, 1e-9)


@pytest.mark.slow
def test_feddm_matches_sends_images_and_learns() -> None:
    method = FedDM(images_per_class=3, image_lr=0.03, rho=1.0, server_epochs=30, server_lr=0.1)
    runs = {steps: train(method, rounds=1, local_steps=steps, executor="vmap", data=TinyData(batch_size=16)) for steps in (1, 60)}
    first, last = (runs[steps].rows[0]["feddm/matching_loss"] for steps in (1, 60))
    assert last < 0.7 * first
    trainer = train(method, data=Clusters(), executor="vmap")
    assert trainer.evaluate()["test/accuracy"] > 0.6
    images = 8 * NUM_CLASSES * 3 * 6
    # Clients send images, one flag per class and the loss, but no weights.
    assert trainer.run.ledger.up == {"model": 0, "FedDM": 3 * 5 * (images + 8 * NUM_CLASSES + 8)}
    assert not trainer.run.clients.by_client or not any(trainer.run.clients.by_client.values())


def test_perturbation_is_gaussian_of_the_norm_asked_for() -> None:
    params = {"a": torch.zeros(40, 50), "b": torch.ones(30)}
    key = torch.tensor(7)
    moved = perturb(params, key, 3, rho=5.0)
    noise = torch.cat([(moved[name] - value).flatten() for name, value in params.items()])
    assert float(noise.norm()) == pytest.approx(5.0, rel=1e-5)
    assert moved["a"].shape == (40, 50)
    small = {"a": torch.zeros(3)}
    assert float(perturb(small, key, 3, rho=1e9)["a"].norm()) < 10
    assert perturb(params, key, 3, rho=0.0) is params
    assert not torch.equal(perturb(params, key, 4, rho=5.0)["a"], moved["a"])
    means, counts = class_means(torch.eye(3), torch.tensor([2, 0, 2]), 3, torch.tensor([1.0, 1.0, 0.0]))
    assert torch.equal(means, torch.tensor([[0.0, 1, 0], [0, 0, 0], [1, 0, 0]])) and counts.tolist() == [1, 0, 1]


@pytest.mark.parametrize("executor", ["loop", "vmap"])
@pytest.mark.slow
def test_feddms_images_diverge_where_their_rate_is_too_large(executor: str) -> None:
    options: dict[str, Any] = {"rounds": 1, "local_steps": 100, "clients_per_round": 2, "executor": executor}
    tame, wild = (FedDM(images_per_class=2, image_lr=rate, rho=0.0, server_epochs=1) for rate in (0.02, 500.0))
    assert train(tame, **options).rows[0]["feddm/matching_loss"] < 10
    with pytest.raises(BadUpdate):
        train(wild, **options)


@pytest.mark.parametrize("beside", [(), (GradientNoise(), Ditto())], ids=["alone", "GradientNoise + Ditto"])
def test_a_server_that_learns_too_fast_from_few_images_is_named(beside: tuple[Method, ...]) -> None:
    """The server's model is then NaN. The next round would blame a client, because Ditto's own model starts from it."""
    fast = FedDM(images_per_class=2, rho=0.5, server_epochs=100, server_lr=0.1)
    with pytest.raises(BadUpdate, match="after the server's step of FedDM in round 2"):
        train(*beside, fast, rounds=3)
