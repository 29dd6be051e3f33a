"""Local trains every client for itself, and evaluates it on the global test set and on its own part."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from contracts.case import Case
from harness import (
    MOMENTUM,
    NUM_CLASSES,
    NUM_FEATURES,
    ODD_BATCHES,
    RAGGED,
    TinyData,
    assert_close,
    classifier,
    fit,
    make_trainer,
    problem_of,
    states_by_client,
    train,
)
from reference import local
from torch import nn

from flcog.callbacks import Ditto
from flcog.callbacks.bounds import Local

pytestmark = pytest.mark.filterwarnings("error")

CASES: dict[str, Case] = {
    "Local": Case(Local(), local.run),
    "Local-momentum": Case(Local(), local.run, optimizer=MOMENTUM, data=ODD_BATCHES, options=RAGGED),
}


@pytest.mark.parametrize("executor", ["loop", "vmap"])
def test_every_client_trains_for_itself(executor: str) -> None:
    setting: dict[str, Any] = {"data": ODD_BATCHES(client_test=0.2), "executor": executor} | RAGGED
    trainer = train(Local(), module=classifier(MOMENTUM), **setting)
    problem = problem_of(trainer, classifier(MOMENTUM), MOMENTUM)
    own, start = local.solve(problem), local.run(problem)
    kept = states_by_client(trainer, "Local", "params")
    assert kept.keys() == own.keys() and len(own) > 5
    for client, state in own.items():
        assert_close(kept[client], state)
    assert (trainer.ledger.total_up, trainer.ledger.total_down) == (0, 0)

    federation, figures = trainer.federation, trainer.evaluate()
    assert federation.test is not None and federation.client_test is not None
    accuracies, losses, own_accuracies = [], [], []
    for client in range(8):
        problem.model.load_state_dict(own.get(client, start))
        outputs = problem.model.eval()(federation.test.inputs.double()).detach()
        accuracies.append(float((outputs.argmax(1) == federation.test.targets).double().mean()))
        losses.append(float(nn.functional.cross_entropy(outputs, federation.test.targets)))
        rows = federation.client_test.client(client)
        outputs = problem.model(federation.train.inputs[rows].double())
        own_accuracies.append(float((outputs.argmax(1) == federation.train.targets[rows]).double().mean()))
    assert figures["test/accuracy"] == pytest.approx(np.mean(accuracies))
    assert figures["test/loss"] == pytest.approx(np.mean(losses), rel=1e-5)
    assert figures["test/personal_accuracy_mean"] == pytest.approx(np.mean(own_accuracies))
    assert not any(name.startswith("test/client_") for name in figures)  # they would describe the initial model


def test_its_models_are_dittos_that_nothing_pulls() -> None:
    """If all clients take part in round 1, Ditto's own models start from the initial model, too."""
    ours, theirs = (
        states_by_client(train(method, clients_per_round=8), method.name, key)
        for method, key in ((Local(), "params"), (Ditto(lambda_prox=0.0), "personal"))
    )
    assert ours.keys() == theirs.keys() == set(range(8))
    for client in ours:
        assert_close(ours[client], theirs[client], 1e-12)


def test_statistics_are_of_the_clients_own_samples() -> None:
    network = lambda: nn.Sequential(nn.BatchNorm1d(NUM_FEATURES), nn.Linear(NUM_FEATURES, NUM_CLASSES))  # noqa: E731
    trainer, seen = train(Local(), module=classifier(network=network)), []
    original = trainer.run.evaluator.on_set
    trainer.run.evaluator.on_set = lambda params, buffers, *rest: seen.append(buffers) or original(params, buffers, *rest)  # type: ignore[method-assign]
    trainer.evaluate()
    for client, buffers in enumerate(seen):
        own = trainer.federation.train.inputs[trainer.federation.partition.client(client)].double()
        torch.testing.assert_close(buffers["model.0.running_mean"], own.mean(0))
    assert len(seen) == 8


def test_its_models_are_in_both_checkpoints(tmp_path: Path) -> None:
    trainer = fit(tmp_path, Local(), eval_every=1)
    scores = [row["test/accuracy"] for row in trainer.rows]
    for path, score in (("last", scores[-1]), ("best", max(scores))):
        assert make_trainer(tmp_path, Local()).test(classifier(), TinyData(), path)["test/accuracy"] == score
