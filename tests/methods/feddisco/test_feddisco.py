"""FedDisco's weights agree with its paper for any metric, target and kind of label, and its configs run."""

import copy
import math
from functools import partial
from pathlib import Path
from typing import Any

import jsonargparse
import numpy as np
import pytest
import torch
from contracts.case import Case
from harness import ROOT, SGD, TINY_LABELS, TinyData, assert_close, distance, fit, instantiated, train
from reference import feddisco

import flcog
from flcog.callbacks import FedDisco, Stragglers
from flcog.callbacks.feddisco import METRICS, discrepancy
from flcog.data import Federation, Partition, Samples
from flcog.datamodules import BiasedUnbiased, LongTail
from flcog.datamodules.partitioners import class_labels
from flcog.method import ClientView
from flcog.models import MLP

pytestmark = pytest.mark.filterwarnings("error")


CASES: dict[str, Case] = {
    "FedDisco": Case(FedDisco(), partial(feddisco.run, a=0.5, b=0.1, target=[1, 1, 1]), neutral=FedDisco(a=0.0, b=0.0)),
    "FedDisco-l1": Case(
        FedDisco(a=0.2, b=0.0, metric="l1", target="global"),
        partial(feddisco.run, a=0.2, b=0.0, metric="l1", target=TINY_LABELS),
        neutral=FedDisco(a=0.0, b=0.0, metric="l1", target="global"),
    ),
    "FedDisco-l2": Case(
        FedDisco(a=0.2, metric="l2", target=[0.2, 0.3, 0.5]),
        partial(feddisco.run, a=0.2, b=0.1, metric="l2", target=[0.2, 0.3, 0.5]),
    ),
    "FedDisco-cosine": Case(
        FedDisco(a=0.4, metric="cosine"), partial(feddisco.run, a=0.4, b=0.1, metric="cosine", target=[1, 1, 1])
    ),
}


@pytest.mark.parametrize("targets", ["multilabel", "regression"])
@pytest.mark.parametrize("executor", ["loop", "vmap"])
def test_feddisco_weighs_any_kind_of_label(targets: Any, executor: str) -> None:
    data = TinyData(targets=targets)
    network = flcog.models.MLP(6, (8,), 3 if targets == "multilabel" else 1)
    client = flcog.MultiLabelClassifier if targets == "multilabel" else flcog.Regressor
    trainers = [
        train(*methods, module=client(copy.deepcopy(network), SGD), data=data, executor=executor, clients_per_round=8, rounds=1)
        for methods in ((), (FedDisco(a=0.2),))
    ]
    assert distance(trainers[0].state, trainers[1].state) > 1e-4
    counts = torch.stack([data.federation.label_counts(k) for k in range(8)])
    assert counts.shape == (8, 3)
    messages = trainers[1].run.server.messages["FedDisco"]
    for k, shares in enumerate(counts / counts.sum(1, keepdim=True)):
        assert messages[k] == pytest.approx(float(sum(s * math.log(3 * s) for s in shares.tolist() if s)), abs=1e-12)


def test_weights_that_are_all_zero_are_not_used() -> None:
    with pytest.warns(UserWarning, match="FedDisco gave every client of round 1 weight 0: keeping the weights before it"):
        trainer = train(FedDisco(a=100.0, b=0.0, metric="l1"), clients_per_round=2, rounds=1)
    assert_close(trainer.state, train(clients_per_round=2, rounds=1).state, 1e-15)


# Few labels or none ------------------------------------------------------------------------------------------------------------------


def regression(values: list[float], clients: list[list[int]] | None = None) -> Federation:
    samples = Samples(torch.arange(len(values)), torch.tensor(values, dtype=torch.float32))
    everybody = [list(range(len(values)))] if clients is None else clients
    return Federation(samples, Partition.from_clients([np.array(client) for client in everybody]), "regression", 10, lambda x: x)


@pytest.mark.parametrize(
    "values",
    [
        [0.0] * 70 + list(range(1, 31)),
        [0.0] * 5 + [1.0] * 5,  # the median, 0.5, is between the two values
        [float(x) for x in range(20)] + [30.0] * 80,  # an edge would equal the largest value, with an empty bin above it
        [2.0] * 12,
        [float(x) for x in range(57)],
    ],
)
def test_bins_of_a_tied_target_are_those_that_the_splits_see(values: list[float]) -> None:
    federation = regression(values)
    bins = np.bincount(class_labels(federation.train))
    assert federation.label_counts(0).tolist() == [*bins, *[0] * (10 - len(bins))]
    assert len(federation.bin_edges) + 1 == len(bins)


@pytest.mark.parametrize("metric", METRICS)
def test_uniform_means_over_the_bins_that_there_are(metric: Any) -> None:
    values = [0.0] * 70 + [float(x) for x in range(1, 31)]  # bins of 0, 1 to 10, 11 to 20, 21 to 30
    even, skewed = [0, 1, 70, 71, 80, 81, 90, 91], [0, 1, 2, 3]
    federation = regression(values, [even, skewed])
    messages = [FedDisco(metric=metric).init_client({}, {}, ClientView.of(federation, k, 0)).message for k in range(2)]
    assert messages[0] == pytest.approx(0, abs=1e-7)
    assert messages[1] == pytest.approx({"kl": np.log(4), "l1": 1.5, "l2": 0.75**0.5, "cosine": 0.5}[metric])


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("target", [[1, 1, 1], [6, 1, 3], [0.2, 0.3, 0.5]])
def test_no_label_is_as_bad_as_one(metric: str, target: list[float]) -> None:
    goal = torch.tensor(target)
    none = discrepancy(torch.zeros(3), goal, metric)
    assert none == pytest.approx(max(discrepancy(alone, goal, metric) for alone in torch.eye(3)))
    assert all(discrepancy(counts, goal, metric) <= none + 1e-12 for counts in torch.rand(50, 3).pow(4))
    if metric == "kl":
        assert none == pytest.approx(-np.log(min(target) / sum(target)))


def test_no_label_where_some_labels_do_not_occur() -> None:
    target = torch.tensor([3, 1, 0])  # KL for the third class would be infinite, so it is left out
    assert discrepancy(torch.zeros(3), target) == pytest.approx(np.log(4))
    assert discrepancy(torch.zeros(3), target, "cosine") == 1
    assert discrepancy(torch.zeros(3), torch.zeros(3)) == 0


@pytest.mark.parametrize("target", ["uniform", "global"])
def test_a_client_without_labels_does_not_count_most(target: Any) -> None:
    class Unlabelled(TinyData):
        """Client 0's samples have no label."""

        def load(self) -> Any:
            splits = super().load()
            splits.train.targets[:6] = 0
            return splits

    module = flcog.MultiLabelClassifier(MLP(6, (8,), 3), optimizer=partial(torch.optim.SGD, lr=0.1))
    trainer = train(FedDisco(target=target), module=module, data=Unlabelled(targets="multilabel"), clients_per_round=8, rounds=1)
    messages = trainer.run.server.messages["FedDisco"]
    assert messages[0] == max(messages.values()) > min(messages.values())


# Configs and costs ------------------------------------------------------------------------------------------------------------------


def configured(name: str) -> Any:
    """The trainer's callbacks and the data's arguments of a config."""
    parser = jsonargparse.ArgumentParser()
    parser.add_argument("--config", action="config")
    parser.add_class_arguments(flcog.FederatedTrainer, "trainer", instantiate=False, sub_configs=True)
    parser.add_subclass_arguments(flcog.FederatedDataModule, "data", instantiate=True)
    digits = "--data=flcog.datamodules.Digits"
    return instantiated(parser, parser.parse_args([digits, f"--config={ROOT / 'configs/methods' / name}.yaml"]))


def test_the_papers_stragglers_run() -> None:
    config = configured("stragglers-feddisco")
    assert config.trainer.callbacks == [Stragglers(min_steps=50, max_steps=500), FedDisco(a=0.5, b=0.1)]
    assert config.data.partitioner == BiasedUnbiased(5, 1) and config.data.num_clients == 6
    trainer = train(*config.trainer.callbacks, rounds=1, clients_per_round=2)
    assert all(50 <= len(client.batches) <= 500 for client in trainer.recorded[0])
    assert len({len(client.batches) for client in trainer.recorded[0]}) == 2


@pytest.mark.parametrize("name", ["feddisco-classes", "feddisco-fairness"])
def test_the_papers_analyses_run(name: str, tmp_path: Path) -> None:
    config, classes = configured(name), name == "feddisco-classes"
    assert config.data.client_test == (0 if classes else 0.2) and isinstance(config.data.partitioner, LongTail) == classes
    module = flcog.Classifier(flcog.models.SoftmaxRegression(784, 10))
    options: dict[str, Any] = {"eval_every": 1, "rounds": 1, "clients_per_round": 2}
    row = fit(tmp_path, *config.trainer.callbacks, FedDisco(), module=module, data=config.data, **options).history[0]
    columns = {"test/class_accuracy_tail", "test/class_accuracy_9"} if classes else {"test/client_accuracy_percent_variance"}
    assert columns <= row.keys()
