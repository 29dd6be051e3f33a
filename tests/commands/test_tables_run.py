"""Every shipped table trains for a round on random data: each arm with each kind of samples, and each
data set, model and setting."""

import functools
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

from commands.comparisons import TABLES
from flcog.commands.cli import main
from flcog.commands.compare.runs import Run, runs_of
from flcog.commands.compare.table import Table, read_table
from flcog.data import Samples, Splits
from flcog.datamodules.flair import COARSE_LABELS

NUM_CLIENTS, NUM_TRAIN, NUM_TEST = 10, 200, 20
LATE = 1
"""Methods that start later than in round 1 start in round 2 here."""

SMALL = {
    **dict.fromkeys(("epochs", "steps", "num_steps", "server_steps", "server_epochs", "generator_steps", "guided_steps"), 1),
    **dict.fromkeys(("min_steps", "images_per_class", "s", "uniform_clients", "every_n_rounds"), 1),
    "f": 0,
    **dict.fromkeys(("max_steps", "sampling_steps", "blocks", "samples_per_class", "latent", "buffer", "candidates"), 2),
    **dict.fromkeys(("num_samples", "max_samples", "diffusion_steps", "generation_batch_size", "channels", "head_dim"), 4),
    **dict.fromkeys(("width", "hidden", "samples_per_client"), 8),
    "num_images": 8,
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
    count = 600 if hasattr(self.partitioner, "rho") else NUM_TRAIN  # some clients have a tenth of the others' samples
    return samples(count if train else NUM_TEST, (32, 32, 3), self.num_classes)


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
    patches = {f"{name}.load": load for name, load in LOADED.items()}
    patches |= {f"{name}.prepare_data": lambda self: None for name in LOADED}
    patches |= {"CIFAR10._read": photographs, "FacebookComments._splits": property(posts)}
    patches |= {"ImageFolders.class_names": property(lambda self: tuple(self.classes or CINIC))}
    for name, replacement in patches.items():
        monkeypatch.setattr(f"flcog.datamodules.{name}", replacement)
    (tmp_path / "data").mkdir()
    train, test = (samples(count, (32, 32, 3), 10) for count in (NUM_TRAIN, NUM_TEST))
    images, labels = (
        {"train_images": train.inputs, "test_images": test.inputs},
        {"train_labels": train.targets, "test_labels": test.targets},
    )
    np.savez(tmp_path / "data" / "cifar10.npz", **images, **labels)


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
        split = (data.get("partitioner") or {}).get("init_args") or {}
        most = 4 if "DDPM" in str(trainer) else split["biased"] + split["unbiased"] if "biased" in split else NUM_CLIENTS
        data["num_clients"] = min(data["num_clients"], most)  # each trains a generator under DDPM
    return config


IMAGES = {
    **dict.fromkeys(("fashion-mnist", "fedavg-mnist", "feddisco-femnist", "fedssyn-mnist", "fedssyn-mnist-rounds"), "grey"),
    **dict.fromkeys(("robustness-mnist", "privacy"), "grey"),
    **dict.fromkeys(("cifar10", "cifar100", "fedssyn-cifar10", "fedssyn-cifar100", "fedwalk", "feddisco-cinic10"), "colour"),
    **dict.fromkeys(("feddisco-classes", "feddisco-fairness", "feddisco-ham10000"), "colour"),
}
"""Configs whose samples differ in nothing that matters to a method."""

ALIKE = {"feddisco-participation": "cifar10"}
"""Configs that differ from others in numbers only."""


@functools.cache
def chosen() -> dict[Path, list[Run]]:
    """Each table's runs with a feature that no run before them has: a config, an arm with a kind of samples, or an argument.

    Numbers do not count, and neither do arms with each of several networks, data sets or attacks.
    """
    runs, seen = {}, set[Any]()
    for path in TABLES:
        table, runs[path] = read_table(path), list[Run]()
        for run in runs_of(replace(table, seeds=table.seeds[:1]), Path("out")):
            features = features_of(table, run)
            if not features <= seen:
                runs[path].append(run)
            seen |= features
    return runs


def features_of(table: Table, run: Run) -> set[Any]:
    row, column = table.rows[run.row], table.columns[run.column]
    configs = tuple(ALIKE.get(path.stem, path.stem) for path in (*table.configs, *column.configs))
    arm, setting = tuple(path.stem for path in row.configs), {**table.arguments, **column.arguments}
    samples = IMAGES.get(configs[0], configs[0])
    return {
        (configs, setting.get("data"), setting.get("data.image_size")),
        (samples, arm),
        *((arm, name, plain(value)) for name, value in {**row.arguments, **row.columns.get(run.column, {})}.items()),
        *((samples, name, plain(value)) for name, value in setting.items()),
    }


def plain(value: Any) -> str:
    """A setting as text, with each number replaced by ``#``."""
    return re.sub(r"-?\d+(\.\d+)?(e-?\d+)?", "#", str(value))


@pytest.mark.slow
@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.stem)
def test_it_trains(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table, failed = read_table(path), {}
    for run in chosen()[path]:
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
