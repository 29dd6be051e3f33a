"""Every shipped table trains for a round on random data: each arm with each kind of data and model in its table, and each setting."""

import json
import re
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

import flcog.datamodules
from commands.comparisons import TABLES
from flcog.commands.cli import main
from flcog.commands.compare.runs import Run, runs_of
from flcog.commands.compare.table import Table, read_table
from flcog.data import Samples, Splits
from flcog.datamodules.flair import COARSE_LABELS

NUM_CLIENTS, NUM_TRAIN, NUM_TEST = 10, 600, 20
LATE = 1
"""Methods that start later than in round 1 start in round 2 here."""

SMALL = {
    **dict.fromkeys(("epochs", "steps", "num_steps", "server_steps", "server_epochs", "generator_steps", "guided_steps"), 1),
    **dict.fromkeys(("min_steps", "images_per_class", "s", "uniform_clients", "every_n_rounds"), 1),
    "f": 0,
    **dict.fromkeys(("max_steps", "sampling_steps", "blocks", "samples_per_class", "latent", "buffer", "candidates"), 2),
    **dict.fromkeys(("num_samples", "diffusion_steps", "generation_batch_size", "channels", "head_dim"), 4),
    **dict.fromkeys(("width", "hidden", "samples_per_client"), 8),
    "num_images": 20,
}
"""Whole numbers in methods and their parts that cost time: as large as they are here at most."""

CINIC = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
Shape = tuple[int, ...]


def samples(count: int, shape: Shape, classes: int, users: int = 0) -> Samples:
    rng = np.random.default_rng(count)
    inputs = torch.from_numpy(rng.integers(0, 256, (count, *shape), dtype=np.uint8))
    targets = torch.arange(count) % classes
    return Samples(inputs, targets, np.sort(np.arange(count) % users) if users else None)


def splits(shape: Shape, classes: int, users: int = 0, count: int = NUM_TRAIN) -> Splits:
    return Splits(samples(count, shape, classes, users), samples(NUM_TEST, shape, classes, users))


def of_labels(found: Samples) -> Samples:
    return Samples(found.inputs, torch.nn.functional.one_hot(found.targets, len(COARSE_LABELS)).float(), found.users)


def flair(self: Any) -> Splits:
    found = [of_labels(samples(count, (32, 32, 3), len(COARSE_LABELS), NUM_CLIENTS)) for count in (200, NUM_TEST, NUM_TEST)]
    return Splits(found[0], test=found[1], val=found[2])


def posts(self: Any) -> Splits:
    found = [samples(count, (53,), 10) for count in (400, NUM_TEST)]
    return Splits(*(Samples(part.inputs.float(), part.targets.float()) for part in found))


def news(self: Any) -> Splits:
    found = [samples(count, (50,), 4) for count in (NUM_TRAIN, NUM_TEST)]
    return Splits(*(Samples(part.inputs.int(), part.targets) for part in found))


def photographs(self: Any, train: bool) -> Samples:
    return samples(NUM_TRAIN if train else NUM_TEST, (32, 32, 3), self.num_classes)


LOADED: Mapping[str, Any] = {
    "MNIST": lambda self: splits((28, 28, 1), 10),
    "FEMNIST": lambda self: splits((28, 28, 1), self.num_classes, NUM_CLIENTS),
    "DSprites": lambda self: splits((64, 64, 1), 3, 12, 240),
    "HAM10000": lambda self: splits((32, 32, 3), 7),
    "ImageFolders": lambda self: splits((32, 32, 3), self.num_classes),
    "FLAIR": flair,
    "FacebookComments": posts,
    "AGNews": news,
}
"""Contents of the data sets whose files are not available to tests. The tests of the data sets read files."""


@pytest.fixture(autouse=True)
def data(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, command_line: None) -> None:
    monkeypatch.chdir(tmp_path)  # arms write their generated data here
    for name, load in LOADED.items():
        monkeypatch.setattr(f"flcog.datamodules.{name}.load", load)
        monkeypatch.setattr(f"flcog.datamodules.{name}.prepare_data", lambda self: None)
    monkeypatch.setattr(flcog.datamodules.CIFAR10, "_read", photographs)
    folders = flcog.datamodules.ImageFolders
    monkeypatch.setattr(folders, "class_names", property(lambda self: tuple(self.classes or CINIC)))
    monkeypatch.setattr(flcog.datamodules.FacebookComments, "_splits", property(posts))


def cut(value: Any, key: str = "") -> Any:
    """The same settings with smaller numbers, and without pretrained weights."""
    if isinstance(value, dict):
        return {name: cut(inner, name) for name, inner in value.items()}
    if isinstance(value, list):
        return [0] if key == "clients" else [cut(inner) for inner in value]
    if key == "weights":
        return None
    if key == "start_round":
        return min(value, LATE)
    if key == "stop_round" and value is not None:
        return LATE + 1
    return min(value, SMALL[key]) if key in SMALL and isinstance(value, int) else value


def smaller(config: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """The same run with a smaller size."""
    config = cut(json.loads(json.dumps(config, default=str)))
    trainer, data = config["trainer"], config["data"]["init_args"]
    starts = [(part.get("init_args") or {}).get("start_round", 0) for part in trainer.get("callbacks") or ()]
    trainer |= {"rounds": 1 + max(starts, default=0), "local_epochs": None, "local_steps": 1, "eval_every": 1, "logger": False}
    trainer |= {
        "accelerator": "cpu",
        "clients_per_round": 3 if "Krum" in str(trainer) or "Bulyan" in str(trainer) else 2,
        "default_root_dir": str(folder),
    }
    data["batch_size"] = 4
    if data.get("num_clients"):
        data["num_clients"] = min(data["num_clients"], NUM_CLIENTS)
    return config


SEEN: set[Any] = set()
"""The arms and settings that any table has trained. Many tables share them."""

ALIKE = {"cifar100": "cifar10", "feddisco-participation": "cifar10", "fedssyn-cifar100": "fedssyn-cifar10"}
"""Settings whose data and models differ from another's in numbers only."""


def is_new(table: Table, run: Run) -> bool:
    """Whether the run has an arm with a kind of data and model, or an argument, that no earlier run had. Numbers do not count."""
    row, column = table.rows[run.row], table.columns[run.column]
    configs = tuple(ALIKE.get(path.stem, path.stem) for path in (*table.configs, *column.configs))
    arm, setting = tuple(path.stem for path in row.configs), {**table.arguments, **column.arguments}
    kind = (configs, setting.get("data"), setting.get("data.image_size"))
    features = {(kind, arm)}
    features |= {(arm, name, plain(value)) for name, value in {**row.arguments, **row.columns.get(run.column, {})}.items()}
    features |= {(kind, name, plain(value)) for name, value in setting.items()}
    new = not features <= SEEN
    SEEN.update(features)
    return new


def plain(value: Any) -> str:
    """A setting as text, with each number replaced by ``#``."""
    return re.sub(r"-?\d+(\.\d+)?(e-?\d+)?", "#", str(value))


@pytest.mark.slow
@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.stem)
def test_it_trains(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = read_table(path)
    runs = [run for run in runs_of(replace(table, seeds=table.seeds[:1]), tmp_path) if is_new(table, run)]
    failed = {}
    for run in runs:
        shutil.rmtree(tmp_path / "out", ignore_errors=True)
        with pytest.raises(SystemExit, match=r"^0$"):
            main([*run.command, "--print_config"])
        config = smaller(yaml.safe_load(capsys.readouterr().out), tmp_path / "out")
        (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
        try:
            main(["fit", "-c", str(tmp_path / "config.yaml")])
        except (Exception, SystemExit) as error:
            failed[run.name] = f"{error!r} {capsys.readouterr().err.strip()[-300:]}"
            continue
        shown = capsys.readouterr().out
        if f"{config['trainer']['rounds']} of {config['trainer']['rounds']}" not in shown:
            failed[run.name] = shown
        (rows,) = (tmp_path / "out").glob("*/metrics.csv")
        header = rows.read_text().splitlines()[0].split(",")
        metrics = {view.metric for view in table.views.values() if view.metric}
        if missing := metrics - {*header}:
            failed[run.name] = f"{missing} is not in {header}"
    assert not failed, "\n".join(f"{name}: {error}" for name, error in failed.items())
