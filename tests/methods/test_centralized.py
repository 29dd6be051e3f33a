"""Centralized trains on the pooled data, takes as many steps as the clients would take together, and sends no bytes."""

from typing import Any

import numpy as np
import pytest
import torch
from contracts.case import Case
from harness import MOMENTUM, SIZES, BatchNormMLP, TinyData, classifier, train
from reference import centralized

from flcog.callbacks import Centralized, FedProx
from flcog.method import Method

pytestmark = pytest.mark.filterwarnings("error")

# random=True, because the order of the clients' samples in the pool decides which samples share a batch.
CASES: dict[str, Case] = {
    "Centralized": Case(Centralized(), centralized.run, random=True),
    "Centralized-momentum": Case(
        Centralized(),
        centralized.run,
        optimizer=MOMENTUM,
        module=lambda optimizer: classifier(optimizer, BatchNormMLP),
        options={"local_epochs": 1.5},
        random=True,
    ),
}


def steps(**options: Any) -> list[int]:
    """The steps that each round's clients take."""
    return [sum(work.num_steps for work in works) for works in train(Centralized(), rounds=2, **options).works]


def test_its_budget_is_that_of_the_rounds_clients() -> None:
    assert steps(clients_per_round=5, local_steps=3) == steps(clients_per_round=0.6, local_steps=3) == [15, 15]
    # Two epochs of all clients' data in batches of 4, then two epochs of half the clients' data.
    assert steps(clients_per_round=1.0, local_epochs=2) == [2 * (sum(SIZES) // 4)] * 2
    assert steps(clients_per_round=4, local_epochs=2) == [sum(SIZES) // 4] * 2


def test_it_trains_on_everybodys_data() -> None:
    trainer = train(Centralized(), local_epochs=1, clients_per_round=1.0, rounds=1)
    ((work,),) = trainer.works
    assert np.array_equal(np.sort(work.order), np.arange(sum(SIZES))) and (work.client, work.weight) == (0, 1.0)
    assert trainer.federation.split.num_clients == len(SIZES)  # the split that papers cite is still the clients'


@pytest.mark.parametrize("extra", [(), (FedProx(mu=0.5),)], ids=["alone", "beside a method"])
def test_of_a_single_client_it_is_fedavg_without_the_bytes(extra: tuple[Method, ...]) -> None:
    data = {"data": TinyData(order=(3,)), "clients_per_round": 1}
    plain, pooled = train(*extra, **data), train(Centralized(), *extra, **data)
    assert all(torch.equal(pooled.state[name], value) for name, value in plain.state.items())
    assert plain.ledger.total_up > 0 and (pooled.ledger.total_up, pooled.ledger.total_down) == (0, 0)
    assert all(row["comm/total_bytes"] == 0 for row in pooled.rows)


def test_it_is_measured_at_each_of_the_clients() -> None:
    trainer = train(Centralized(), data=TinyData(client_test=0.3))
    held_out = trainer.federation.client_test
    assert held_out is not None and held_out.num_clients == len(SIZES)
    x, y = trainer.federation.train.inputs.double(), trainer.federation.train.targets
    model = classifier().model.double().eval()
    model.load_state_dict(trainer.state)
    own = [float((model(x[rows]).argmax(1) == y[rows]).double().mean()) for rows in map(held_out.client, range(len(SIZES)))]
    assert trainer.evaluate()["test/client_accuracy_mean"] == pytest.approx(np.mean(own))
    assert not set(held_out.indices) & {index for works in trainer.works for work in works for index in work.order}
