"""TrainingScores evaluates the global model on the clients' training samples, every round and where the test score is best."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from harness import MOMENTUM, TinyData, classifier, fit

from flcog.callbacks import FedDyn, TrainingScores

pytestmark = pytest.mark.filterwarnings("error")


@pytest.mark.parametrize("methods", [(), (FedDyn(alpha=0.1),)], ids=["fedavg", "feddyn"])
def test_it_is_the_model_on_the_pooled_samples(methods: Any, tmp_path: Path) -> None:
    """Held-out samples of clients do not count, and FedDyn is evaluated at the mean of the clients' models."""
    module, data = classifier(), TinyData(client_test=0.3)
    trainer = fit(tmp_path, TrainingScores(), *methods, module=module, data=data, eval_every=1, rounds=2)
    model, partition = copy.deepcopy(module.model), data.federation.partition
    model.load_state_dict({name.removeprefix("model."): value for name, value in trainer.run.evaluated_params().items()})
    rows = torch.cat([torch.from_numpy(partition.client(k)) for k in range(8)])
    assert 0 < len(rows) < len(data.federation.train)
    outputs, targets = model(data.federation.train.inputs[rows].double()).detach(), data.federation.train.targets[rows]
    row = trainer.history[-1]
    assert row["training/accuracy"] == pytest.approx(float((outputs.argmax(1) == targets).double().mean()))
    assert row["training/loss"] == pytest.approx(float(F.cross_entropy(outputs, targets)), rel=1e-5)


def test_the_chosen_model_is_the_first_of_the_best(tmp_path: Path) -> None:
    """As in FedWalk's Table 2, the final model is the global model with the highest test accuracy."""
    rows = fit(tmp_path, TrainingScores(), module=classifier(MOMENTUM), eval_every=1, rounds=8).history
    for count in range(1, 9):
        best = max(rows[:count], key=lambda row: row["test/accuracy"])
        assert rows[count - 1]["training/accuracy_at_best"] == best["training/accuracy"]
    assert len({row["training/accuracy_at_best"] for row in rows}) > 2


@pytest.mark.slow
def test_some_evaluations_are_enough(tmp_path: Path) -> None:
    everywhere, sparse = (
        fit(tmp_path, TrainingScores(every), module=classifier(MOMENTUM), eval_every=2, rounds=12).history for every in (1, 3)
    )
    measured = {row["round"] for row in sparse if "training/loss" in row}
    best, improved = 0.0, set()
    for row in everywhere[1::2]:
        if row["test/accuracy"] > best:
            best = row["test/accuracy"]
            improved.add(row["round"])
    assert measured == {6, 12} | improved and len(measured) < 6
    columns = [[row.get("training/accuracy_at_best") for row in rows] for rows in (everywhere, sparse)]
    assert columns[0] == columns[1]
