"""Every shipped setting trains with its model, split and observers, on random data with the shape of its data set."""

import inspect
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from harness import ROOT

from flcog.commands import shipped_configs
from flcog.commands.cli import main

CONFIGS = ROOT / "configs"

PHOTOGRAPHS, GREY = (32, 32, 3), (28, 28, 1)
# The shape of a sample, the number of classes (0 for regression), and arguments that save time.
SETTINGS: dict[str, tuple[tuple[int, ...], int, dict[str, Any]]] = {
    "cifar10": (PHOTOGRAPHS, 10, {}),
    "cifar100": (PHOTOGRAPHS, 100, {}),
    "fashion-mnist": (GREY, 10, {}),
    "studies/fedavg-mnist": (GREY, 10, {"data.num_clients": 20}),
    "studies/feddisco-ag-news": ((50,), 4, {}),
    "studies/feddisco-cinic10": (PHOTOGRAPHS, 10, {}),
    "studies/feddisco-facebook": ((53,), 0, {}),
    "studies/feddisco-femnist": (GREY, 10, {"trainer.clients_per_round": 2}),
    "studies/feddisco-ham10000": ((8, 8, 3), 7, {"data.num_clients": 2, "data.batch_size": 4}),
    "studies/feddisco-participation": (PHOTOGRAPHS, 10, {"trainer.clients_per_round": 2}),
    "studies/fedssyn-cifar10": (PHOTOGRAPHS, 10, {"trainer.clients_per_round": 1, "data.batch_size": 8}),
    "studies/fedssyn-cifar100": (PHOTOGRAPHS, 100, {"trainer.clients_per_round": 1, "data.batch_size": 8}),
    "studies/fedssyn-dsprites": ((64, 64, 1), 3, {"data.batch_size": 16}),
    "studies/fedssyn-mnist": (GREY, 10, {"data.batch_size": 16}),
    "studies/fedssyn-mnist-rounds": (GREY, 10, {}),
    "studies/fedssyn-quadratics": ((), 0, {}),  # Its data are generated, not read.
    "studies/opacus-mnist": (GREY, 10, {"trainer.clients_per_round": 20, "data.num_clients": 2000}),
    "studies/pfllib-ag-news": ((50,), 4, {"data.num_clients": 3}),
    "studies/pfllib-fashion-mnist": (GREY, 10, {"data.num_clients": 5}),
    "studies/privacy": (GREY, 10, {"trainer.clients_per_round": 2, "data.num_clients": 10}),
    "studies/robustness": (GREY, 10, {"data.num_clients": 3}),
    "studies/robustness-mnist": (GREY, 10, {"data.num_clients": 6}),
    "studies/selection": (GREY, 10, {"trainer.clients_per_round": 2, "data.num_clients": 10}),
    "studies/fedwalk": (PHOTOGRAPHS, 10, {"trainer.clients_per_round": 2}),
}
ELSEWHERE = {"flair", "llm", "lora", "quickstart"}
"""Run in test_flair.py, test_llm.py, test_lora.py and test_cli.py."""


def test_none_is_forgotten() -> None:
    settings = {name for name in shipped_configs.names() if name.partition("/")[0] in (name, "studies")}
    assert settings == ELSEWHERE | set(SETTINGS)


def write_arrays(path: Path, shape: tuple[int, ...], classes: int) -> None:
    rng, arrays = np.random.default_rng(0), {}
    for part, count in (("train", 2000), ("test", 50)):
        numbers = rng.integers(2, 256, (count, *shape))
        inputs = numbers.astype(np.uint8) if len(shape) == 3 else numbers if classes else rng.standard_normal((count, *shape))
        arrays |= {f"{part}_inputs": inputs, f"{part}_targets": np.arange(count) % classes if classes else rng.random(count)}
    np.savez(path, **arrays)


@pytest.mark.slow
@pytest.mark.usefixtures("command_line")
@pytest.mark.parametrize("name", SETTINGS)
def test_it_trains(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shape, classes, smaller = SETTINGS[name]
    words = ["fit", "-c", str(CONFIGS / f"{name}.yaml")]
    if name == "studies/fedwalk":
        (tmp_path / "untrained.yaml").write_text("model: {init_args: {model: {init_args: {weights: null}}}}")
        words += ["-c", str(tmp_path / "untrained.yaml")]
    arguments = {
        "trainer.rounds": 1,
        "trainer.local_epochs": "null",
        "trainer.local_steps": 1,
        "trainer.logger": "false",
        "trainer.default_root_dir": tmp_path / "runs",
    }
    if shape:
        write_arrays(tmp_path / "data.npz", shape, classes)
        arguments |= {"data": "flcog.datamodules.ArrayData", "data.path": tmp_path / "data.npz", **smaller}
    main([*words, *(word for key, value in arguments.items() for word in (f"--{key}", str(value)))])
    assert "1 of 1" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.usefixtures("command_line")
@pytest.mark.parametrize("name", sorted(ELSEWHERE | set(SETTINGS)))
def test_its_optimizer_has_what_it_says_and_nothing_more(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """An option that the file leaves out has torch's default, not a value of the optimiser that flcog uses if no file names one."""
    file = CONFIGS / f"{name}.yaml"
    written = yaml.safe_load(file.read_text())["model"]["init_args"]["optimizer"]
    optimizer = getattr(torch.optim, written["class_path"].rpartition(".")[2])
    defaults = {k: parameter.default for k, parameter in inspect.signature(optimizer).parameters.items() if k != "params"}
    usual = {k: list(value) if isinstance(value, tuple) else value for k, value in defaults.items()}
    with pytest.raises(SystemExit, match="0"):
        main(["fit", "-c", str(file), "--print_config"])
    printed = yaml.safe_load(capsys.readouterr().out)["model"]["init_args"]["optimizer"]
    assert printed["init_args"] == usual | {k: float(value) for k, value in written["init_args"].items()}
