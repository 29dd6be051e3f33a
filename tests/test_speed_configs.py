"""Configs that are timed on random data: they have the sizes that they state, and each is timed on a small part of its data."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from harness import ROOT

import flcog
from flcog.commands import shipped_configs
from flcog.commands.cli import main

CONFIGS = ROOT / "configs/speed"

# The shape of an input, then the numbers of parameters, clients, clients in a round, their local steps, and samples in a step.
PHOTOGRAPHS, LARGE, RESNET = (32, 32, 3), (224, 224, 3), 11_689_512 - 513 * 1000 + 513 * 10
SIZES: dict[str, tuple[tuple[int, ...], int, int, int, int, int]] = {
    "simple-cnn": (PHOTOGRAPHS, 62_006, 10, 10, 40, 64),
    "simple-cnn-devices": (PHOTOGRAPHS, 62_006, 1000, 50, 5, 10),
    "pfl-cnn": (PHOTOGRAPHS, 1_626_442, 1000, 50, 5, 10),
    "lenet": ((28, 28, 1), 44_426, 100, 10, 60, 10),
    "softmax": ((784,), 7_850, 200, 200, 8, 5),
    "softmax-10000": ((784,), 7_850, 10_000, 10_000, 8, 5),
    "resnet18-group-32": (PHOTOGRAPHS, RESNET - 64 * 3 * (49 - 9), 10, 10, 40, 64),
    "resnet18-batch-32": (PHOTOGRAPHS, RESNET - 64 * 3 * (49 - 9), 10, 10, 40, 64),
    "resnet18-group-224": (LARGE, RESNET, 10, 10, 10, 32),
    "resnet18-batch-224": (LARGE, RESNET, 10, 10, 10, 32),
    "million-clients": ((20,), 210, 1_000_000, 100, 1, 1),
    "text-cnn": ((200,), 98_635 * 32 + (3 + 4 + 5) * 32 * 100 + 300 + 301 * 4, 5, 5, 40, 64),
}


def test_none_is_forgotten() -> None:
    shipped = {name.removeprefix("speed/") for name in shipped_configs.names() if name.startswith("speed/")}
    assert shipped == set(SIZES)


@pytest.mark.parametrize("name", SIZES)
def test_its_sizes(name: str) -> None:
    text = (CONFIGS / f"{name}.yaml").read_text()
    config = yaml.safe_load(text)
    trainer, data, network = config["trainer"], config["data"]["init_args"], config["model"]["init_args"]["model"]
    model = getattr(flcog.models, network["class_path"].rpartition(".")[2])(**network["init_args"])
    parameters, samples = sum(p.numel() for p in model.parameters()), data["num_samples"] // data["num_clients"]
    steps = trainer.get("local_steps") or trainer["local_epochs"] * samples // data["batch_size"]
    in_a_round = trainer.get("clients_per_round", data["num_clients"])
    found = (tuple(data["shape"]), parameters, data["num_clients"], in_a_round, steps, data["batch_size"])
    assert found == SIZES[name]
    assert trainer.keys() <= {"clients_per_round", "local_steps", "local_epochs"}, (
        "what trains it, and on what, is for others to say"
    )
    assert text.startswith(f"# flcog bench -c configs/speed/{name}.yaml\n#\n# ")
    said = text.partition("\ntrainer:")[0]
    assert all(int(number.replace(",", "")) == parameters for number in re.findall(r"([\d,]+) parameters", said))
    if name.startswith("resnet"):
        assert {type(layer).__name__ for layer in model.modules()} >= {"GroupNorm" if "group" in name else "BatchNorm2d"}


SMALL: dict[str, Any] = {
    "trainer.clients_per_round": 2,
    "trainer.local_epochs": "null",
    "trainer.local_steps": 1,
    "data.num_clients": 2,
    "data.num_samples": 8,
    "data.num_test_samples": 4,
    "data.batch_size": 4,
}
METHODS = {
    "methods/fedcog": {"trainer.callbacks.start_round": 0, "trainer.callbacks.steps": 2, "trainer.callbacks.num_samples": 4},
    "methods/fedreg": {"trainer.callbacks.steps": 2},
}


def timed(*configs: str, **smaller: Any) -> None:
    given = {"repeats": 1, "seconds": 0, **SMALL, **smaller}
    words = [word for config in configs for word in ("-c", config)]
    main(["bench", *words, *(word for key, value in given.items() for word in (f"--{key}", str(value)))])


@pytest.mark.usefixtures("command_line")
@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.slow if "resnet" in name else ()) for name in SIZES])
@pytest.mark.slow
def test_it_is_timed(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    timed(f"speed/{name}")
    assert re.search(r"^\| flcog \| .* m?s \|.*\n\| bare \| ", capsys.readouterr().out, re.MULTILINE)


@pytest.mark.usefixtures("command_line")
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.slow
def test_a_method_is_timed(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    timed("speed/simple-cnn", method, **METHODS[method])
    assert "in flcog's rounds alone" in capsys.readouterr().out
