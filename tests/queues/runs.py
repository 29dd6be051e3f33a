"""Short runs for the tests of queues and torchrun, and their results."""

from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from harness import without_times

import flcog
from flcog.run import checkpoint

ROUNDS = 6


def config(folder: Path, sleep: float = 0.0) -> Path:
    network = {"class_path": "flcog.models.MLP", "init_args": {"in_features": 6, "hidden": [8], "num_classes": 3}}
    trainer = {"rounds": ROUNDS, "local_steps": 2, "eval_every": 1, "logger": False, "accelerator": "cpu", "precision": "64-true"}
    slow = {"class_path": "run.test_resume.Slow", "init_args": {"sleep": sleep}}
    setting = {
        "seed_everything": 0,
        "trainer": {**trainer, "callbacks": [{"class_path": "flcog.callbacks.SCAFFOLD"}, slow]},
        "model": {"class_path": "flcog.Classifier", "init_args": {"model": network}},
        "data": {"class_path": "harness.TinyData"},
    }
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(setting))
    return path


def outcome(root: Path) -> tuple[list[Any], dict[str, torch.Tensor]]:
    """The history without times, and the model, of the only run in a folder."""
    (run,) = (path.parent for path in root.glob("*/metrics.csv"))
    return without_times(flcog.SavedRun(run).rows), checkpoint.read(run / "checkpoints/last.ckpt")["params"]


def assert_same(root: Path, other: Path) -> None:
    (rows, params), (other_rows, other_params) = outcome(root), outcome(other)
    assert len(rows) == ROUNDS and rows == other_rows
    assert all(torch.equal(value, other_params[name]) for name, value in params.items())


def fit(path: Path, root: Path, *options: str) -> list[str]:
    return ["flcog", "fit", "-c", str(path), "--trainer.default_root_dir", str(root), *options]


def quickstart(root: Path, *options: str) -> list[str]:
    """The command for four short rounds of the quickstart."""
    short = ["--trainer.rounds", "4", "--trainer.local_steps", "5", "--trainer.eval_every", "1", "--trainer.logger", "false"]
    return fit(Path("quickstart"), root, *short, "--trainer.accelerator", "cpu", *options)


def assert_same_model(root: Path, other: Path) -> None:
    """The models and scores of the quickstart agree to the last bit.

    Other columns agree up to rounding, because several processes add the clients' measurements in another order.
    """
    (rows, params), (other_rows, other_params) = outcome(root), outcome(other)
    assert len(rows) == 4 and all(torch.equal(value, other_params[name]) for name, value in params.items())
    for row, same in zip(rows, other_rows, strict=True):
        scores = [name for name in row if name.startswith(("test/", "comm/"))]
        assert [row[name] for name in scores] == [same[name] for name in scores]
        assert same == pytest.approx(row, rel=1e-12)
