"""Labels that do not fit the task, and models that do not fit the labels, give one line that says what to change."""

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from harness import NUM_FEATURES, TinyData, classifier, make_trainer, train
from torch import Tensor

import flcog
from datamodules.common import CPU, one_line
from flcog.data import Samples, Splits
from flcog.datamodules import ArrayData
from flcog.models import MLP


def test_a_data_modules_labels_lie_below_num_classes() -> None:
    data = TinyData()
    data.num_classes = 2
    with one_line(ValueError, r"TinyData: the training set has label 2 at row \d+: 2 classes are numbered 0 to 1"):
        data.setup()


class FiveClasses(TinyData):
    """The tiny federation, with a larger label in its training set."""

    num_classes = 5

    def load(self) -> Splits:
        splits = super().load()
        splits.train.targets[-1] = 4
        return splits


@pytest.mark.parametrize("executor", ["loop", "vmap"])
def test_a_model_with_too_few_outputs(executor: str) -> None:
    with one_line(
        ValueError, "MLP has 3 outputs, and the training set has labels up to 4, so it takes 5 outputs: set .*num_classes"
    ):
        make_trainer(None, executor=executor).prepare(classifier(), FiveClasses())


class Own(flcog.FederatedDataModule):
    """A user's data module of 12 samples."""

    num_classes = 3

    def __init__(self, targets: Any) -> None:
        super().__init__(num_clients=6)
        self.targets = targets

    def load(self) -> Splits:
        return Splits(Samples(np.random.default_rng(0).random((12, NUM_FEATURES)), self.targets))


CLASSES = np.arange(12) % 3


def test_a_data_module_may_return_arrays() -> None:
    of_arrays, of_tensors = Own(CLASSES), Own(torch.from_numpy(CLASSES))
    arrays, tensors = (data.federation.load(data.federation.train, torch.arange(12), CPU) for data in (of_arrays, of_tensors))
    assert torch.equal(arrays[0], tensors[0]) and torch.equal(arrays[1], tensors[1])
    make_trainer(None).prepare(classifier(), of_arrays)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (Own(CLASSES.astype(float)), "learns class indices, and the training set's targets are torch.float64: give integers"),
        (Own(np.eye(3)[CLASSES]), r"the training set needs one class index per sample; .* \(12, 3\): give targets.argmax\(1\)"),
        (Own(CLASSES.tolist()), "inputs and targets have 12 and 1 rows: give tensors or arrays"),
    ],
    ids=["floats", "one-hot", "list"],
)
def test_other_targets_of_a_data_module_are_refused(data: Own, message: str) -> None:
    with one_line(ValueError, message):
        make_trainer(None).prepare(classifier(), data)


def test_outputs_of_the_other_tasks() -> None:
    network = MLP(NUM_FEATURES, (8,), 2)
    with one_line(ValueError, "MLP has 2 outputs, and the training set has 3 labels, so it takes as many outputs"):
        make_trainer(None).prepare(flcog.MultiLabelClassifier(network), TinyData(targets="multilabel"))
    with one_line(ValueError, "MLP has 2 outputs, and .* one value per sample, so it takes one output .numbers of classes must"):
        make_trainer(None).prepare(flcog.Regressor(network), TinyData(targets="regression"))
    make_trainer(None).prepare(flcog.Regressor(MLP(NUM_FEATURES, (8,), 1)), TinyData(targets="regression"))


def test_a_model_for_another_task() -> None:
    data = ArrayData(train_inputs=np.ones((12, NUM_FEATURES)), train_targets=CLASSES.astype(float), num_clients=6)
    with one_line(
        ValueError, "Classifier learns classification, .* holds regression data: .*, or set the data's task .* floats are values"
    ):
        make_trainer(None).prepare(classifier(), data)


def test_a_loss_of_the_users_own_takes_what_outputs_it_likes() -> None:
    class Ordinal(flcog.Classifier):
        """Uses one output fewer than there are classes."""

        def per_example_loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
            above = torch.arange(outputs.shape[1], device=outputs.device) < targets[:, None]
            return F.binary_cross_entropy_with_logits(outputs, above.to(outputs.dtype), reduction="none").mean(1)

    trainer = train(module=Ordinal(MLP(NUM_FEATURES, (8,), 2)), rounds=1)
    assert all(value.isfinite().all() for value in trainer.run.params.values())
