import os
import sys
import tempfile
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
import torchmetrics.classification as tm
from harness import TinyData, fit
from sklearn import metrics as sk
from torch import Tensor
from torchmetrics import MetricCollection

import flcog
from flcog.metrics import average_precision, classification_metrics, multilabel_metrics, regression_metrics
from flcog.models import MLP

pytestmark = pytest.mark.filterwarnings("error")


def scores(collection: MetricCollection, outputs: Tensor, targets: Tensor, batch_size: int = 7) -> dict[str, float]:
    for batch in zip(outputs.split(batch_size), targets.split(batch_size), strict=True):
        collection.update(*batch)
    return {name: value.item() for name, value in collection.compute().items()}


def multilabel_reference(outputs: Tensor, targets: Tensor, threshold: float = 0.5) -> dict[str, float]:
    logits, truth = outputs.double().numpy(), targets.numpy()
    probabilities = 1 / (1 + np.exp(-logits))
    reference = {}
    for letter, average in (("C", "macro"), ("O", "micro")):
        p, r, f1, _ = sk.precision_recall_fscore_support(truth, probabilities > threshold, average=average, zero_division=0)
        reference |= {f"{letter}-P": p, f"{letter}-R": r, f"{letter}-F1": f1}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            reference[f"{average}-AP"] = sk.average_precision_score(truth, logits, average=average)
    return reference


def test_a_run_has_the_metrics_that_its_user_gives(tmp_path: Path) -> None:
    """One number becomes a column, and one for each class becomes a column for each."""
    given = {"f1": tm.MulticlassF1Score(3), "recall": tm.MulticlassRecall(3, average="none")}
    module = flcog.Classifier(MLP(6, (8,), 3), metrics=given)
    trainer = fit(tmp_path, module=module, data=TinyData(client_test=0.3), rounds=1, eval_every=1)
    test = trainer.run.federation.test
    outputs = module.double()(test.inputs.double())
    expected = {"test/f1": given["f1"].clone()(outputs, test.targets)}
    expected |= {f"test/recall_{label}": value for label, value in enumerate(given["recall"].clone()(outputs, test.targets))}
    assert {name: trainer.rows[-1][name] for name in expected} == pytest.approx({n: float(v) for n, v in expected.items()})
    assert "test/accuracy" in trainer.rows[-1]
    alone = flcog.Classifier(MLP(6, (8,), 3), metrics=given["f1"])
    assert "test/MulticlassF1Score" in fit(tmp_path, module=alone, rounds=1, eval_every=1).rows[-1]


def test_accuracy() -> None:
    torch.manual_seed(0)
    outputs, targets = torch.randn(40, 5), torch.randint(0, 5, (40,))
    reference = sk.accuracy_score(targets.numpy(), outputs.numpy().argmax(1))
    assert scores(classification_metrics(5), outputs, targets) == {"accuracy": pytest.approx(reference)}


@pytest.mark.parametrize("threshold", [0.5, 0.2, 0.9])
def test_multilabel(threshold: float) -> None:
    torch.manual_seed(1)
    outputs, targets = 3 * torch.randn(101, 6), (torch.rand(101, 6) < torch.linspace(0.05, 0.9, 6)).long()
    computed = scores(multilabel_metrics(6, threshold), outputs, targets)
    assert computed == pytest.approx(multilabel_reference(outputs, targets, threshold), abs=1e-6)


def test_multilabel_as_torchmetrics_has_it() -> None:
    """FedCOG's C-P, C-R and C-F1 are macro averages. A label without predictions or positives counts as 0."""
    torch.manual_seed(4)
    outputs, targets = torch.randn(80, 5) - 0.5, (torch.rand(80, 5) < 0.3).long()
    outputs[:, 1], targets[:, 2] = -1.0, 0
    computed, probabilities = scores(multilabel_metrics(5), outputs, targets), outputs.sigmoid()
    for letter, average in (("C", "macro"), ("O", "micro")):
        for name, metric in (("P", tm.MultilabelPrecision), ("R", tm.MultilabelRecall), ("F1", tm.MultilabelF1Score)):
            theirs = metric(5, average="none" if average == "macro" else average, zero_division=0)(probabilities, targets)
            assert computed[f"{letter}-{name}"] == pytest.approx(float(theirs.mean()), abs=1e-6)


def test_logits_within_the_unit_interval_are_still_logits() -> None:
    torch.manual_seed(2)
    outputs, targets = torch.rand(30, 3), torch.randint(0, 2, (30, 3))
    outputs[:7] *= 9  # only one batch has values outside the interval
    assert scores(multilabel_metrics(3), outputs, targets) == pytest.approx(multilabel_reference(outputs, targets), abs=1e-6)


def test_large_logits_keep_their_order() -> None:
    """As float32 probabilities they would all be 1."""
    outputs, targets = torch.tensor([[20.0], [30.0], [25.0], [40.0]]), torch.tensor([[0], [1], [0], [1]])
    assert scores(multilabel_metrics(1), outputs, targets)["micro-AP"] == 1


def test_labels_without_positives_count_as_zero() -> None:
    torch.manual_seed(3)
    outputs, targets = torch.randn(40, 4), torch.randint(0, 2, (40, 4))
    targets[:, 1] = 0
    outputs[:, 1] = -1.0
    targets[:, 2] = 0
    assert scores(multilabel_metrics(4), outputs, targets) == pytest.approx(multilabel_reference(outputs, targets), abs=1e-6)
    nothing = scores(multilabel_metrics(4), outputs, torch.zeros_like(targets))
    assert nothing == dict.fromkeys(nothing, 0.0)
    assert len(nothing) == 8


def test_tied_scores_are_one_threshold() -> None:
    values = torch.tensor([0.5, 0.5, 0.1, 0.5, 0.9, 0.1])
    positive = torch.tensor([True, False, True, True, False, False])
    for order in (torch.arange(6), torch.tensor([3, 0, 5, 1, 2, 4])):
        reference = sk.average_precision_score(positive[order].numpy(), values[order].numpy())
        assert average_precision(values[order], positive[order]).item() == pytest.approx(reference)


def test_f1_is_the_mean_of_the_labels_f1() -> None:
    """Two labels have P, R = 1, 1/2 and 1/2, 1. The mean of F1 is 2/3, but the harmonic mean of C-P and C-R is 3/4."""
    outputs = torch.tensor([[1.0, 1.0], [-1.0, 1.0]])
    targets = torch.tensor([[1, 1], [1, 0]])
    computed = scores(multilabel_metrics(2), outputs, targets)
    assert (computed["C-P"], computed["C-R"]) == (0.75, 0.75)
    assert computed["C-F1"] == pytest.approx(2 / 3)


@pytest.mark.parametrize("offset", [0.0, 2000.0])
def test_regression(offset: float) -> None:
    torch.manual_seed(4)
    targets = offset + torch.randn(3000)
    outputs = targets + 0.5 * torch.randn(3000)
    computed = scores(regression_metrics(), outputs.unsqueeze(1), targets, batch_size=64)
    p, t = outputs.double().numpy(), targets.double().numpy()
    reference = {"mse": sk.mean_squared_error(t, p), "mae": sk.mean_absolute_error(t, p), "r2": sk.r2_score(t, p)}
    assert computed == pytest.approx(reference, rel=1e-4)


def test_regression_of_several_columns() -> None:
    torch.manual_seed(4)
    targets = torch.randn(300, 2) * torch.tensor([1.0, 5.0])
    outputs = targets + 0.5 * torch.randn(300, 2)
    computed = scores(regression_metrics(), outputs, targets, batch_size=64)
    p, t = outputs.double().numpy(), targets.double().numpy()
    functions = {"mse": sk.mean_squared_error, "mae": sk.mean_absolute_error, "r2": sk.r2_score}
    expected = {f"{name}_{column}": score(t[:, column], p[:, column]) for name, score in functions.items() for column in (0, 1)}
    assert computed == pytest.approx(expected | {name: score(t, p) for name, score in functions.items()}, rel=1e-4)


@pytest.mark.parametrize("prediction", [2.0, 3.0])
def test_r2_of_constant_targets(prediction: float) -> None:
    outputs, targets = torch.full((4,), prediction), torch.full((4,), 2.0)
    assert scores(regression_metrics(), outputs, targets)["r2"] == sk.r2_score(targets.numpy(), outputs.numpy())


def collections() -> list[MetricCollection]:
    return [multilabel_metrics(3), regression_metrics(), classification_metrics(3)]


def score_share(rank: int, world: int, directory: str, data: list[tuple[Tensor, Tensor]]) -> None:
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{directory}/store", rank=rank, world_size=world)
    # torchmetrics warns of a process without samples only in rank 0, and every forked process regards itself as rank 0.
    warnings.filterwarnings("ignore", "The ``compute`` method")
    results = {}
    for collection, (outputs, targets) in zip(collections(), data, strict=True):
        # The shares are uneven, and the third process has no samples.
        mine = [slice(0, 20), slice(20, 33), None][rank]
        if mine is not None:
            collection.update(outputs[mine], targets[mine])
        results |= {key: value.item() for key, value in collection.compute().items()}
    torch.save(results, f"{directory}/{rank}.pt")
    # destroy_process_group is not called: in torch 2.7 it waits forever if another process has already exited.


@pytest.mark.skipif(sys.platform != "linux", reason="forks; starting Python anew would cost seconds a process")
@pytest.mark.parametrize("world", [2, 3])
def test_processes_agree_with_one(world: int) -> None:
    torch.manual_seed(6)
    data = [
        (torch.randn(33, 3), torch.randint(0, 2, (33, 3))),
        (torch.randn(33), torch.randn(33)),
        (torch.randn(33, 3), torch.randint(0, 3, (33,))),
    ]
    expected: dict[str, float] = {}
    for collection, (outputs, targets) in zip(collections(), data, strict=True):
        expected |= scores(collection, outputs, targets)
    with tempfile.TemporaryDirectory() as directory:
        torch.multiprocessing.start_processes(score_share, (world, directory, data), nprocs=world, start_method="fork")
        for rank in range(world):
            assert torch.load(os.path.join(directory, f"{rank}.pt")) == pytest.approx(expected, abs=1e-6)


def test_update_accepts_half_precision_and_drops_graphs() -> None:
    collection = multilabel_metrics(2)
    collection.update(torch.randn(4, 2, requires_grad=True).bfloat16(), torch.ones(4, 2, dtype=torch.bool))
    assert not any(value.requires_grad for value in collection.compute().values())


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: classification_metrics(1), "num_classes must be at least 2; got 1: for one yes/no output use multilabel"),
        (lambda: multilabel_metrics(0), "num_labels must be at least 1; got 0"),
        (lambda: multilabel_metrics(3, threshold=1.0), r"threshold must lie in \(0, 1\); got 1.0: it is a probability"),
        (lambda: multilabel_metrics(3).update(torch.zeros(4, 2), torch.zeros(4, 2)), r"must both be \[B, 3\], got \(4, 2\)"),
        (lambda: multilabel_metrics(3).update(torch.zeros(4, 3), torch.zeros(4)), r"must both be \[B, 3\], got .* and \(4,\)"),
        (lambda: regression_metrics().update(torch.zeros(4, 2), torch.zeros(4)), "the same number of values per sample"),
        (lambda: regression_metrics().update(torch.zeros(4), torch.zeros(3)), "the same number of values per sample"),
    ],
)
def test_bad_input_is_one_clear_line(call, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)
