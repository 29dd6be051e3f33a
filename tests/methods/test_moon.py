"""MOON against its paper, its error-prone details and its projection."""

from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from contracts.case import Case
from harness import (
    NUM_FEATURES,
    ODD_BATCHES,
    RAGGED,
    BatchNormFeatures,
    TinyData,
    assert_close,
    classifier,
    distance,
    make_trainer,
    train,
)
from reference import moon

import flcog
from flcog.callbacks.moon import MOON, contrast
from flcog.core.global_streams import seeded
from flcog.core.randomness import fold
from flcog.functional.apply import Apply
from flcog.functional.model_function import ModelFunction
from flcog.method import Batch, Context, GlobalModel
from flcog.models import SimpleCNN

pytestmark = pytest.mark.filterwarnings("error")


CASES: dict[str, Case] = {
    "MOON": Case(
        MOON(mu=2.0, temperature=0.7, projection=None),
        partial(moon.run, mu=2.0, temperature=0.7),
        neutral=MOON(mu=0.0, projection=None),
        data=ODD_BATCHES,
        options=RAGGED,
    ),
    "MOON-batchnorm": Case(
        MOON(mu=2.0, projection=None),
        partial(moon.run, mu=2.0, temperature=0.5),
        neutral=MOON(mu=0.0, projection=None),
        module=partial(classifier, network=BatchNormFeatures),
    ),
}


@pytest.mark.parametrize("executor", ["loop", "vmap"])
@pytest.mark.slow
def test_moon_that_starts_late_has_negatives_from_the_rounds_before(executor: str) -> None:
    """In round 1 no client has a previous model, so MOON from round 2 on equals MOON from round 1 on."""
    options: dict[str, Any] = {"clients_per_round": 1.0, "executor": executor}
    late, all_along = (train(MOON(mu=5.0, projection=None, start_round=start), rounds=3, **options) for start in (1, 0))
    assert all(torch.equal(late.state[name], value) for name, value in all_along.state.items())
    waits, plain = (train(*methods, rounds=2, **options) for methods in ([MOON(mu=5.0, projection=None, start_round=2)], []))
    assert all(torch.equal(waits.state[name], value) for name, value in plain.state.items())
    over = train(MOON(mu=5.0, projection=None, start_round=1, stop_round=2), rounds=3, **options)
    assert distance(over.state, late.state) > 1e-5 and distance(over.state, train(rounds=3, **options).state) > 1e-5


def test_moon_adds_exactly_nothing_before_it_has_a_previous_model() -> None:
    method, model = MOON(mu=3.0), ModelFunction(classifier(network=BatchNormFeatures))
    batch = Batch(torch.randn(4, NUM_FEATURES), torch.zeros(4, dtype=torch.long))

    def loss(client: Any) -> float:
        ctx = Context(**dict.fromkeys(Context._fields))._replace(received=GlobalModel(model.params, model.buffers), state=client)
        return method.loss(Apply(model, model.buffers), model.params, batch, torch.zeros(()), ctx).item()

    new = method.init_client(model.params, model.buffers, None)
    assert loss(new) == 0
    assert loss(new | {"has_previous": torch.ones(())}) > 1


def test_moon_keeps_each_clients_own_last_model_with_its_buffers() -> None:
    trainer = train(MOON(projection=None), module=classifier(network=BatchNormFeatures), rounds=2, clients_per_round=1.0)
    kept = [trainer.run.clients.by_client[client]["MOON"] for client in range(8)]
    assert kept[0]["buffers"].keys() == trainer.run.buffers.keys()
    weights = torch.tensor([client.num_samples for client in trainer.recorded[-1]], dtype=torch.float64)
    for part, server in (("params", trainer.run.params), ("buffers", trainer.run.buffers)):
        for name, value in server.items():
            if value.is_floating_point():
                stacked = torch.stack([slot[part][name] for slot in kept])
                torch.testing.assert_close(torch.tensordot(weights / weights.sum(), stacked, 1), value)
                assert stacked.std(0).max() > 1e-3


def test_layers_that_a_method_adds_follow_the_runs_seed() -> None:
    def projection(seed: int, elsewhere: int) -> Any:
        torch.manual_seed(elsewhere)
        trainer = make_trainer(None, MOON(), seed=seed)
        trainer.prepare(module, TinyData())
        return trainer.run.params["model.projection.0.weight"]

    module = classifier()
    assert torch.equal(projection(1, elsewhere=0), projection(1, elsewhere=1))
    assert not torch.equal(projection(1, elsewhere=0), projection(2, elsewhere=0))


def test_moon_projects_as_in_its_paper() -> None:
    module = flcog.Classifier(SimpleCNN(3, 10))
    projected = MOON().configure_model(module)
    assert sum(p.numel() for p in projected.parameters()) == 92_626
    assert isinstance(module.model, SimpleCNN) and sum(p.numel() for p in module.parameters()) == 62_006
    assert projected.has_features and projected.model.num_features == 256
    x = torch.randn(2, 3, 32, 32)
    first, second = projected.model.projection[0], projected.model.projection[2]
    before = module.features(x)
    expected = F.linear(F.relu(F.linear(before, first.weight, first.bias)), second.weight, second.bias)
    torch.testing.assert_close(projected.features(x), expected)
    torch.testing.assert_close(projected(x), projected.model.head(expected))
    assert MOON(projection=None).configure_model(module) is module


@pytest.mark.slow
def test_moon_trains_the_projected_model() -> None:
    method = MOON(mu=2.0, projection=5)
    loop, vmap = (train(method, executor=executor) for executor in ("loop", "vmap"))
    assert loop.state["head.weight"].shape == (3, 5)
    assert_close(vmap.state, loop.state, 1e-11)
    module = classifier()
    with seeded(fold(0, "configure_model", "MOON"), torch.device("cpu")):
        projected = method.configure_model(module)
    features_only = train(MOON(mu=2.0, projection=None), module=projected)
    assert_close(loop.state, features_only.state, 1e-12)
    assert distance(loop.state, train(MOON(mu=0.0, projection=5)).state) > 1e-5


def test_contrast_is_cross_entropy_and_divides_by_the_temperature() -> None:
    z, near, far = torch.randn(3, 5, 4, dtype=torch.float64)
    logits = torch.stack([F.cosine_similarity(z, near), F.cosine_similarity(z, far)], 1)
    for temperature in (0.05, 0.5):
        expected = F.cross_entropy(logits / temperature, torch.zeros(5, dtype=torch.long), reduction="none")
        torch.testing.assert_close(contrast(z, near, far, temperature), expected)
