"""FedDisco's weights against its paper: every metric, target and kind of label."""

import copy
import math
from functools import partial
from typing import Any

import pytest
import torch
from contracts.case import Case, Refusals
from harness import SGD, TINY_LABELS, TinyData, assert_close, distance, train
from reference import feddisco

import flcog
from flcog.callbacks import FedDisco

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


REFUSED: Refusals = {
    FedDisco: [
        ({"a": -1.0}, "a must be at least 0; got -1.0"),
        ({"metric": "js"}, "metric must be kl, l1, l2 or cosine; got 'js'"),
        ({"target": "test"}, "target must be uniform, global or a list of class shares; got 'test'"),
        ({"target": [1.0, 0.0]}, "target's shares must be at least 0, and above 0 for metric=kl; got [1.0, 0.0]"),
    ],
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
    reports = trainers[1]._reports["FedDisco"]
    for k, shares in enumerate(counts / counts.sum(1, keepdim=True)):
        assert reports[k] == pytest.approx(float(sum(s * math.log(3 * s) for s in shares.tolist() if s)), abs=1e-12)


def test_weights_that_are_all_zero_are_not_used() -> None:
    with pytest.warns(UserWarning, match="FedDisco gave every client of round 1 weight 0: keeping the weights before it"):
        trainer = train(FedDisco(a=100.0, b=0.0, metric="l1"), clients_per_round=2, rounds=1)
    assert_close(trainer.state, train(clients_per_round=2, rounds=1).state, 1e-15)
