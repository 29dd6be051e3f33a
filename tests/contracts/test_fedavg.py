"""FedAvg itself: against plain torch with several optimisers and networks, with one client, and with clients of weight 0."""

import copy
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch
from harness import (
    MOMENTUM,
    NUM_CLASSES,
    NUM_FEATURES,
    SGD,
    BatchNormMLP,
    TinyData,
    assert_close,
    classifier,
    distance,
    dropout_network,
    few_quickly,
    problem_of,
    train,
)
from reference import fedavg
from torch import Tensor, nn

from flcog.callbacks import SCAFFOLD, EqualWeights, FedDisco, FedNova, FedSAM
from flcog.method import Cohort, Method, Workload

pytestmark = pytest.mark.filterwarnings("error")


OPTIMIZERS = {
    "sgd": SGD,
    "momentum": MOMENTUM,
    "adam": partial(torch.optim.Adam, lr=0.01, weight_decay=0.1),
    "adamw": partial(torch.optim.AdamW, lr=0.01, weight_decay=0.1),
}


def instance_norm() -> nn.Module:
    """A network that normalises each sample alone, and tracks statistics over the samples for evaluations."""
    norm = nn.InstanceNorm1d(2, affine=True, track_running_stats=True)
    return nn.Sequential(nn.Linear(NUM_FEATURES, 8), nn.Unflatten(1, (2, 4)), norm, nn.Flatten(), nn.Linear(8, NUM_CLASSES))


NETWORKS = {"mlp": None, "batchnorm": BatchNormMLP, "instancenorm": instance_norm}


@pytest.mark.parametrize("network", NETWORKS.values(), ids=NETWORKS.keys())
@pytest.mark.parametrize("work", few_quickly([{"local_epochs": 1.5}, {"local_steps": 4}], 1), ids=["epochs", "steps"])
@pytest.mark.parametrize(
    "optimizer",
    [pytest.param(make, id=name, marks=pytest.mark.slow if name.startswith("adam") else ()) for name, make in OPTIMIZERS.items()],
)
def test_fedavg(optimizer: Any, work: dict[str, Any], network: Any) -> None:
    module = classifier(optimizer, network)
    loop = train(module=copy.deepcopy(module), **work)
    assert_close(loop.state, fedavg.run(problem_of(loop, module, optimizer)), 1e-10)
    for chunk_size in (None, 2):
        vmap = train(module=classifier(optimizer, network), executor="vmap", chunk_size=chunk_size, **work)
        assert vmap.executor.name == "vmap"
        assert_close(vmap.state, loop.state, 1e-11)


@pytest.mark.parametrize("methods", [(), (FedSAM(rho=0.3),)], ids=["fedavg", "fedsam"])
@pytest.mark.slow
def test_dropout_is_the_same_under_every_executor(methods: tuple[Method, ...]) -> None:
    loop, vmap, chunked = (
        train(*methods, module=classifier(network=dropout_network), local_epochs=1.5, **options)
        for options in ({}, {"executor": "vmap"}, {"executor": "vmap", "chunk_size": 2})
    )
    assert_close(vmap.state, loop.state, 1e-11)
    assert_close(chunked.state, loop.state, 1e-11)
    without = train(module=classifier(network=lambda: nn.Sequential(*[dropout_network()[i] for i in (0, 1)], nn.Linear(8, 3))))
    assert distance({"x": next(iter(without.state.values()))}, {"x": next(iter(loop.state.values()))}) > 1e-3


@pytest.mark.parametrize("method", [None, SCAFFOLD(), FedNova(), FedDisco(), EqualWeights()], ids=repr)
def test_one_client_is_plain_sgd(method: Method | None) -> None:
    module = classifier(MOMENTUM)
    network = copy.deepcopy(module.model).double()
    trainer = train(*([method] if method else []), module=module, data=TinyData(order=(3,)), clients_per_round=1, local_epochs=2)
    for (client,) in trainer.recorded:
        optimizer = MOMENTUM(network.parameters())
        for inputs, targets in client.batches:
            optimizer.zero_grad()
            nn.functional.cross_entropy(network(inputs), targets).backward()
            optimizer.step()
    assert_close(trainer.state, network.state_dict(), 1e-11)


@dataclass(frozen=True)
class Without(Workload):
    """Leaves one client out: the client does not train, or it trains and its update has weight 0."""

    client: int = 0
    trains: bool = False

    def plan(self, num_steps: int, client: Any, rng: torch.Generator) -> Any:
        return num_steps if self.trains or client.id != self.client else None

    def weights(self, weights: Tensor, messages: object, cohort: Cohort) -> Tensor:
        return weights * torch.tensor([float(client != self.client) for client in cohort.clients])


@pytest.mark.parametrize("executor", ["loop", "vmap"])
def test_a_client_without_weight_changes_nothing(executor: str) -> None:
    absent, weightless = (
        train(Without(client=3, trains=trains), clients_per_round=8, executor=executor) for trains in (False, True)
    )
    assert [len(round) for round in absent.recorded + weightless.recorded] == [7, 7, 7, 8, 8, 8]
    assert_close(weightless.state, absent.state, 1e-12)


def test_statistics_that_an_instance_norm_tracks_count_no_padding() -> None:
    module, options = classifier(network=instance_norm), {"local_epochs": 1, "rounds": 1}
    loop, vmap = (train(module=copy.deepcopy(module), executor=executor, **options) for executor in ("loop", "vmap"))
    assert_close(loop.state, fedavg.run(problem_of(loop, module, SGD)), 1e-10)
    assert vmap.executor.name == "vmap"
    assert_close(vmap.state, loop.state, 1e-11)
