"""Ditto against its paper, and that it does not change the global model."""

from typing import Any

import pytest
import torch
from contracts.case import Case
from harness import (
    MOMENTUM,
    NUM_CLASSES,
    NUM_FEATURES,
    ODD_BATCHES,
    RAGGED,
    BatchNormMLP,
    TinyData,
    assert_close,
    classifier,
    distance,
    dropout_network,
    few_quickly,
    problem_of,
    states_by_client,
    train,
)
from reference import ditto, fedavg
from torch import nn

from flcog.callbacks import Ditto

pytestmark = pytest.mark.filterwarnings("error")


CASES: dict[str, Case] = {
    "Ditto": Case(Ditto(lambda_prox=0.7), fedavg.run, data=ODD_BATCHES, options=RAGGED, like_fedavg=True),
    "Ditto-momentum": Case(Ditto(lambda_prox=0.7, momentum=None), fedavg.run, data=ODD_BATCHES, options=RAGGED, like_fedavg=True),
}


@pytest.mark.parametrize(("lr", "momentum"), few_quickly([(0.03, 0.5), (None, None), (None, 0.0), (0.03, 0.0)]))
@pytest.mark.parametrize("executor", ["loop", "vmap"])
def test_ditto_against_the_paper(executor: str, lr: float | None, momentum: float | None) -> None:
    setting: dict[str, Any] = {"data": ODD_BATCHES(client_test=0.2), "executor": executor} | RAGGED
    trainer = train(Ditto(lambda_prox=0.7, lr=lr, momentum=momentum), module=classifier(MOMENTUM), **setting)
    theirs = 0.9 if momentum is None else momentum  # the local optimiser's momentum
    state, own = ditto.run(problem_of(trainer, classifier(MOMENTUM), MOMENTUM), 0.7, lr, theirs)
    assert_close(trainer.state, state)
    kept = states_by_client(trainer, "Ditto", "personal")
    assert kept.keys() == own.keys()
    for client, params in own.items():
        assert_close(kept[client], params)
        assert distance(params, {name: state[name] for name in params}) > 1e-3
    trainer.evaluate()
    for client, (params, _) in enumerate(trainer.measured):
        expected = own.get(client, {name: state[name] for name in kept[0]})
        assert_close({name.removeprefix("model."): value for name, value in params.items()}, expected)


@pytest.mark.parametrize("network", few_quickly([BatchNormMLP, None, dropout_network], 1), ids=["batchnorm", "mlp", "dropout"])
@pytest.mark.parametrize("executor", ["loop", "vmap"])
def test_ditto_leaves_the_global_model_to_fedavg(executor: str, network: Any) -> None:
    plain, personal = (train(*m, module=classifier(network=network), executor=executor) for m in ((), (Ditto(),)))
    assert all(torch.equal(personal.state[name], value) for name, value in plain.state.items())
    assert personal.ledger.total_up == plain.ledger.total_up and personal.ledger.total_down == plain.ledger.total_down


def test_dittos_own_statistics_are_of_its_own_samples() -> None:
    """BatchNorm is the first layer, so its statistics are the moments of the client's own samples."""
    network = lambda: nn.Sequential(nn.BatchNorm1d(NUM_FEATURES), nn.Linear(NUM_FEATURES, NUM_CLASSES))  # noqa: E731
    trainer = train(Ditto(), module=classifier(network=network), data=TinyData(client_test=0.2))
    federation, before = trainer.run.federation, {name: value.clone() for name, value in trainer.run.buffers.items()}
    seen = []
    trainer.run.evaluator.on_rows = lambda params, buffers, rows, own: seen.append(buffers) or 0.0  # type: ignore[method-assign]
    trainer.evaluate()
    for client, buffers in enumerate(seen):
        own = federation.train.inputs[federation.partition.client(client)].double()
        torch.testing.assert_close(buffers["model.0.running_mean"], own.mean(0))
        torch.testing.assert_close(buffers["model.0.running_var"], own.var(0))
    assert len(seen) == 8 and trainer.run.model.module.model[0].momentum == 0.1
    assert all(torch.equal(trainer.run.buffers[name], value) for name, value in before.items())


def test_ditto_alone_trains_for_itself_and_pulled_hard_stays() -> None:
    alone = train(Ditto(lambda_prox=0.0), clients_per_round=1, data=TinyData(order=(3,)))
    # One client's model and the global one then take the same steps.
    assert_close(states_by_client(alone, "Ditto", "personal")[0], alone.state, 1e-12)
    held = train(Ditto(lambda_prox=10.0), rounds=1)  # lr * lambda = 1: each step starts from x again.
    far = train(Ditto(lambda_prox=0.0), rounds=1)
    start = {name: value.detach().double() for name, value in classifier().model.named_parameters()}
    distances = [max(distance(own, start) for own in states_by_client(run, "Ditto", "personal").values()) for run in (held, far)]
    assert distances[0] < distances[1] / 2
