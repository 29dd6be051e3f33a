"""Which figure observers watch, whether lower values of it are better, and which round was the best."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from harness import TinyData, classifier, fit

import flcog
from flcog.callbacks import EarlyStopping, RoundsToTarget
from flcog.core.monitor import Monitor, lower_is_better, main_metric
from flcog.models import MLP
from flcog.run import checkpoint
from flcog.run.observers.checkpoint import Checkpoint


def test_the_main_metric_is_the_tasks_own_and_models_are_chosen_on_the_validation_set() -> None:
    assert main_metric({"train/loss": 1, "test/loss": 1, "test/accuracy": 0.5}) == "test/accuracy"
    assert main_metric({"test/loss": 1, "test/C-P": 0.1, "test/macro-AP": 0.5}) == "test/macro-AP"
    assert main_metric({"test/loss": 1, "test/mae": 1, "test/mse": 1}) == "test/mse"
    assert main_metric({"test/loss": 1}) == "test/loss"
    assert main_metric({"train/loss": 1}) is None
    both = {"val/accuracy": 0.1, "test/accuracy": 0.2}
    assert main_metric(both) == "test/accuracy"
    assert main_metric(both, selecting=True) == "val/accuracy"
    own = both | {"test/personal_accuracy_mean": 0.3}
    assert main_metric(own) == "test/personal_accuracy_mean"
    assert main_metric(own, selecting=True) is None, (
        "neither clients' test parts nor the global model choose among personal models"
    )
    assert main_metric(own | {"val/personal_accuracy_mean": 0.3}, selecting=True) == "val/personal_accuracy_mean"


@pytest.mark.parametrize(
    ("targets", "module", "metric", "better"),
    [
        ("classification", flcog.Classifier, "test/accuracy", max),
        ("multilabel", flcog.MultiLabelClassifier, "test/macro-AP", max),
        ("regression", flcog.Regressor, "test/mse", min),
    ],
)
def test_the_best_checkpoint_is_the_best_rounds_model(
    tmp_path: Path, targets: Any, module: Any, metric: str, better: Any
) -> None:
    rate = 0.03 if targets == "regression" else 0.7
    client = module(MLP(6, (8,), 1 if targets == "regression" else 3), optimizer=partial(torch.optim.SGD, lr=rate))
    data = TinyData(targets=targets)
    trainer = fit(tmp_path, module=client, data=data, eval_every=1, rounds=6)
    values = [row[metric] for row in trainer.history]
    assert len(set(values)) > 1 and trainer.run_dir is not None
    best = trainer.run_dir / "checkpoints/best.ckpt"
    assert checkpoint.read(best)["round"] == 1 + values.index(better(values))
    assert trainer.test(client, data, str(best))[metric] == better(values)


@pytest.mark.parametrize(
    ("name", "lower"),
    [
        ("test/mse", True),
        ("train/loss", True),
        ("test/client_mae_worst_decile", True),
        ("test/accuracy", False),
        ("test/class_accuracy_tail", False),
        ("test/class_accuracy_std", True),
        ("test/client_accuracy_std", True),
        ("test/client_accuracy_percent_variance", True),
        ("test/client_accuracy_jain", False),
        ("test/client_mae_jain", False),
        *((f"test/{name}", True) for name in ("nll", "ece", "brier", "brier_score", "wer", "mape", "cross_entropy", "log_loss")),
        *(
            (f"test/{name}", True)
            for name in ("MeanSquaredError", "MulticlassCalibrationError", "hamming_distance", "error_rate")
        ),
        *((name, True) for name in ("drift/norm", "time/round", "comm/total_bytes", "valLoss", "negative_log_likelihood")),
        *((f"test/{name}", False) for name in ("f1", "R2Score", "mIoU", "mAP50", "top5_acc", "explained_variance", "foo")),
        *((name, False) for name in ("drift/cosine", "neg_mean_squared_error", "test/domain_shift_accuracy")),
    ],
)
def test_which_way_is_up(name: str, lower: bool) -> None:
    assert lower_is_better(name) == lower
    assert Monitor(name, None).gain(name, 1.0, over=2.0) == (1 if lower else -1)
    assert Monitor(name, "min").gain(name, 1.0, over=2.0) == 1 and Monitor(name, "max").gain(name, 1.0, over=2.0) == -1


def test_an_explicit_metric_decides_and_so_does_an_explicit_mode(tmp_path: Path) -> None:
    def best_round(**options: Any) -> tuple[int, list[dict[str, float]]]:
        trainer = fit(tmp_path, Checkpoint(**options), module=classifier(partial(torch.optim.SGD, lr=0.02)), eval_every=1)
        assert trainer.run_dir is not None
        return checkpoint.read(trainer.run_dir / "checkpoints/best.ckpt")["round"], trainer.history

    lowest, history = best_round(monitor="test/loss")
    losses = [row["test/loss"] for row in history]
    assert lowest == 1 + losses.index(min(losses)) > 1
    assert best_round(monitor="test/loss", mode="max")[0] == 1 + losses.index(max(losses)) == 1


def test_a_metric_that_is_not_measured_is_refused_at_the_first_evaluation(tmp_path: Path) -> None:
    for observer in (Checkpoint("test/acuracy"), EarlyStopping("test/acuracy"), RoundsToTarget(0.5, "test/acuracy")):
        with pytest.raises(ValueError, match=r"test/acuracy.*Did you mean 'test/accuracy'\?.*test/loss"):
            fit(tmp_path, observer, eval_every=2)
        assert len((max(tmp_path.iterdir()) / "metrics.csv").read_text().splitlines()) == 2  # the header and round 1
    with pytest.raises(ValueError, match="mode must be max or min; got 'largest'"):
        Checkpoint(mode="largest")  # type: ignore[arg-type]


def test_observers_of_evaluations_refuse_a_run_without_any(tmp_path: Path) -> None:
    for observer in (EarlyStopping(), RoundsToTarget(0.5)):
        with pytest.raises(ValueError, match="eval_every=0: set it"):
            fit(tmp_path, observer, eval_every=0)
