"""Accuracy by class, and by groups of classes with similar frequencies, as in FedDisco's Figure 8."""

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from harness import TinyData, classifier, fit

from flcog.callbacks import ClassAccuracy, FedDyn
from flcog.callbacks.observers.class_accuracy import frequency_groups


def test_classes_fall_into_groups_by_frequency() -> None:
    """The groups are the paper's: categories 1 to 4, 5 to 7 and 8 to 10 of an exponentially imbalanced CIFAR-10."""
    counts = torch.tensor([5000 * 10 ** (-c / 9) for c in range(10)])
    groups = frequency_groups(counts, 0.4, 0.3)
    assert [group.tolist() for group in groups.values()] == [[0, 1, 2, 3], [4, 5, 6], [7, 8, 9]]
    assert [len(group) for group in frequency_groups(counts[:3], 0.5, 0.5).values()] == [1, 0, 2]


@pytest.mark.parametrize("methods", [(), (FedDyn(alpha=0.1),)], ids=["fedavg", "feddyn"])
def test_accuracy_by_class(methods: Any, tmp_path: Path) -> None:
    data, module = TinyData(), classifier()
    trainer = fit(tmp_path, ClassAccuracy(head=0.34, tail=0.34), *methods, module=module, data=data, eval_every=1, rounds=2)
    federation = data.federation
    assert federation.test is not None
    # FedDyn is evaluated at the mean of the clients' models.
    model = copy.deepcopy(module.model)
    model.load_state_dict({name.removeprefix("model."): value for name, value in trainer.run.evaluated_params().items()})
    with torch.no_grad():
        predicted = model(torch.as_tensor(federation.test.inputs).double()).argmax(1)
    right = (predicted == federation.test.targets).double()
    by_class = [float(right[federation.test.targets == c].mean()) for c in range(3)]
    row = trainer.history[-1]
    assert [row[f"test/class_accuracy_{c}"] for c in range(3)] == pytest.approx(by_class, abs=1e-9)
    assert row["test/class_accuracy_mean"] == pytest.approx(np.mean(by_class))
    assert row["test/class_accuracy_std"] == pytest.approx(np.std(by_class))
    # The tiny training set holds 14, 15 and 51 samples of its classes.
    groups = [row[f"test/class_accuracy_{name}"] for name in ("head", "middle", "tail")]
    assert groups == pytest.approx([by_class[2], by_class[1], by_class[0]], abs=1e-9)
    assert row["test/class_accuracy_mean"] == pytest.approx(row["test/accuracy"])  # the test set is balanced
    assert trainer.run_dir is not None and (trainer.run_dir / "figures/class_accuracy-000002.png").is_file()
