"""Configs that are timed on random data: each is timed on a small part of its data."""

import re
from pathlib import Path
from typing import Any

import pytest

from flcog.commands import shipped_configs
from flcog.commands.cli import main

NAMES = [name for name in shipped_configs.names() if name.startswith("speed/")]

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
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.slow
def test_it_is_timed(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    timed(name)
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
