"""LocalModels trains as FedAvg does, and measures clients' models before they are averaged."""

from pathlib import Path

import numpy as np
import pytest
import torch
from contracts.case import Case
from harness import SGD, TinyData, assert_close, classifier, fit, problem_of
from reference import fedavg
from reference.common import parameters
from reference.common import train as train_client
from torch import nn

from flcog.callbacks import LocalModels
from flcog.data import Federation, Samples

pytestmark = pytest.mark.filterwarnings("error")


CASES: dict[str, Case] = {"LocalModels": Case(LocalModels(), fedavg.run, like_fedavg=True)}


@pytest.mark.parametrize("executor", ["loop", "vmap"])
def test_local_models_are_measured(executor: str, tmp_path: Path) -> None:
    data = TinyData(client_test=0.3)
    trainer = fit(tmp_path, LocalModels(), data=data, rounds=1, eval_every=1, executor=executor)
    problem, federation = problem_of(trainer, classifier(), SGD), data.federation
    assert_close(trainer.state, fedavg.run(problem), 1e-10)
    locals_ = {client.id: train_client(problem, problem.model, client) for client in trainer.recorded[0]}
    assert federation.test is not None and federation.client_test is not None
    everything = {
        "distance": [
            float(torch.cat([(value - trainer.state[name]).flatten() for name, value in parameters(local).items()]).norm())
            for local in locals_.values()
        ],
        "test_accuracy": [accuracy(local, federation.test, np.arange(30)) for local in locals_.values()],
        "reweighted_accuracy": [reweighted(local, federation.test, own_labels(federation, k)) for k, local in locals_.items()],
        "client_accuracy": [accuracy(local, federation.train, federation.client_test.client(k)) for k, local in locals_.items()],
    }
    for name, values in everything.items():
        assert trainer.history[0][f"local/{name}_mean"] == pytest.approx(np.mean(values), rel=1e-6), name
        assert trainer.history[0][f"local/{name}_std"] == pytest.approx(np.std(values), rel=1e-5), name
    assert trainer.history[0]["local/distance_worst_decile"] == pytest.approx(max(everything["distance"]), rel=1e-6)
    assert not trainer.run.server.servers["LocalModels"] and not trainer.run.server.uploads


def own_labels(federation: Federation, client: int) -> list[int]:
    return federation.train.targets[federation.partition.client(client)].tolist()


def reweighted(model: nn.Module, samples: Samples, own: list[int]) -> float:
    """The accuracy on the test samples of each label, averaged over the labels of the client's own samples."""
    of_label = {label: accuracy(model, samples, np.flatnonzero(samples.targets == label)) for label in set(own)}
    return float(np.mean([of_label[label] for label in own]))


def accuracy(model: nn.Module, samples: Samples, rows: np.ndarray) -> float:
    inputs, targets = torch.as_tensor(samples.inputs)[rows].double(), samples.targets[rows]
    return float((model(inputs).argmax(1) == targets).double().mean())
