"""FineTune takes steps of the local optimiser from the global model."""

import copy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from contracts.case import Case
from harness import MOMENTUM, BatchNormMLP, TinyData, assert_close, classifier, problem_of, train
from reference import fedavg, fedprox, fine_tune

from flcog.callbacks import FedAvgM, FedProx
from flcog.callbacks.personal.fine_tune import FineTune
from flcog.client.messages import ClientTask
from flcog.client.work import batches, make_work
from flcog.core.randomness import fold

pytestmark = pytest.mark.filterwarnings("error")


CASES: dict[str, Case] = {
    "FineTune": Case(FineTune(steps=2), fedavg.run, like_fedavg=True),
    "FineTune-local": Case(FineTune(steps=None), fedavg.run, like_fedavg=True),
}


@pytest.mark.parametrize("network", [None, BatchNormMLP], ids=["mlp", "batchnorm"])
def test_fine_tuning_is_the_local_optimisers_from_the_global_model(network: Any) -> None:
    trainer = train(FineTune(steps=3), FedProx(mu=0.5), module=classifier(MOMENTUM, network), data=TinyData(client_test=0.3))
    figures, before = trainer.evaluate(), classifier(MOMENTUM, network)
    assert len(trainer.measured) == 8
    problem, hits = problem_of(trainer, before, MOMENTUM), []
    model = copy.deepcopy(problem.model)
    model.load_state_dict(trainer.state)
    for client, (own, rows) in enumerate(trainer.measured):
        seed = fold(trainer.settings.seed, "personal")
        (work,) = make_work(
            trainer.run.federation, trainer.run.engine.batching, [ClientTask(client, 3, 1.0)], seed, trainer.run.round
        )
        steps = [(batch.inputs, batch.targets) for batch in batches(work, trainer.run.engine.reader)]
        expected = fine_tune.run(problem, model, client, steps)
        assert_close(
            {n: own[f"model.{n}"] for n, _ in model.named_parameters()}, {n: expected[n] for n, _ in model.named_parameters()}
        )
        model_k = copy.deepcopy(model).eval()
        model_k.load_state_dict(expected)
        assert np.array_equal(np.sort(rows), np.sort(trainer.run.federation.client_test.client(client)))
        x, y = trainer.run.federation.train.inputs[rows].double(), trainer.run.federation.train.targets[rows]
        hits.append(float((model_k(x).argmax(1) == y).double().mean()))
    assert figures["test/personal_accuracy_mean"] == pytest.approx(np.mean(hits))
    assert figures["test/personal_accuracy_std"] == pytest.approx(np.std(hits))


@pytest.mark.parametrize("executor", ["loop", "vmap"])
def test_without_a_number_of_steps_it_is_the_rounds_local_model(executor: str) -> None:
    """As in FedCOG's Table 9 (A.4.1), these are the local models before aggregation, trained with the method's own loss."""
    options: dict[str, Any] = {"data": TinyData(client_test=0.3), "clients_per_round": 1.0, "executor": executor}
    trainer = train(FineTune(steps=None), FedProx(mu=0.5), module=classifier(MOMENTUM), **options, rounds=2)
    problem = problem_of(trainer, classifier(MOMENTUM), MOMENTUM)
    last = replace(problem, rounds=problem.rounds[:-1])
    received = copy.deepcopy(problem.model)
    received.load_state_dict(fedprox.run(last, mu=0.5))
    figures = trainer.evaluate()
    assert len(trainer.measured) == 8
    for client, (own, _) in zip(problem.rounds[-1], trainer.measured, strict=True):
        # The average over one client is its own model.
        begun = replace(problem, model=received, rounds=[[client]])
        expected = fedprox.run(begun, mu=0.5)
        assert_close(
            {name.removeprefix("model."): value for name, value in own.items()}, {name: expected[name] for name in expected}
        )
    assert figures["test/personal_accuracy_std"] > 0
    plain = train(FedProx(mu=0.5), module=classifier(MOMENTUM), **options, rounds=2)
    assert all(torch.equal(trainer.state[name], value) for name, value in plain.state.items())


def test_fine_tuning_changes_no_training_and_without_steps_measures_the_global_model() -> None:
    data = TinyData(client_test=0.3)
    plain, tuned = train(FedAvgM(), data=data), train(FedAvgM(), FineTune(steps=0), data=data)
    figures = tuned.evaluate()
    assert all(torch.equal(tuned.state[name], value) for name, value in plain.state.items())
    assert figures["test/personal_accuracy_mean"] == figures["test/client_accuracy_mean"]
    assert "test/personal_accuracy_mean" not in plain.evaluate()
