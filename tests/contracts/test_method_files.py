"""There is one config per method or published form. A setting that differs in one or two values is an argument in the tables instead."""

from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import yaml
from harness import ROOT

from flcog.commands.cli import main

CONFIGS = ROOT / "configs"
METHODS = sorted((CONFIGS / "methods").glob("*.yaml"))
FORMS = {
    "fedcog-code": "what the authors' program runs",
    "fedpvr-fedssyn": "tables list it before another method, where no argument would reach it",
    "fedwalk-tiny-imagenet": "its leash is another data set",
    "moon-fedcog": "a baseline as another paper's code has it",
    "moon-feddisco": "a baseline as another paper's code has it",
}


def settings(value: Any, name: str = "") -> dict[str, Any]:
    """Every value of a config under its full name."""
    if isinstance(value, list) and value and isinstance(value[0], dict):
        value = {str(place): one for place, one in enumerate(value)}
    if not isinstance(value, dict):
        return {name: value}
    return {key: one for part, inner in value.items() for key, one in settings(inner, f"{name}.{part}").items()}


LOADED = {path: yaml.safe_load(path.read_text()) for path in METHODS}


def callbacks(path: Path) -> list[str]:
    return [value["class_path"] for value in LOADED[path]["trainer"]["callbacks+"]]


def test_no_file_is_another_one_but_for_a_value_or_two() -> None:
    close = set()
    for one, other in combinations(METHODS, 2):
        if callbacks(one) == callbacks(other):
            left, right = (settings(LOADED[path]) for path in (one, other))
            differ = [name for name in left | right if left.get(name, "nothing") != right.get(name, "nothing")]
            if len(differ) <= 2:
                pair = {one.stem, other.stem} & set(FORMS)
                assert pair, f"{other.name} is {one.name} but for {', '.join(differ)}: make it an argument, or one of FORMS"
                close |= pair
    assert close == set(FORMS)


@pytest.mark.usefixtures("command_line")
@pytest.mark.parametrize("path", sorted((CONFIGS / "leashes").glob("*.yaml")), ids=lambda path: path.stem)
def test_any_fedwalk_takes_a_leash_from_its_file(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["fit", "-c", str(CONFIGS / "cifar10.yaml"), "-c", str(CONFIGS / "methods/fedwalk.yaml")]
    with pytest.raises(SystemExit, match=r"^0$"):
        main([*words, "--trainer.callbacks.leash", str(path), "--trainer.callbacks.leash.image_size", "24", "--print_config"])
    config = yaml.safe_load(capsys.readouterr().out)
    leash, given = config["trainer"]["callbacks"][-1]["init_args"]["leash"], yaml.safe_load(path.read_text())
    assert leash["class_path"] == given["class_path"]
    assert leash["init_args"].items() >= (given["init_args"] | {"image_size": 24}).items()
