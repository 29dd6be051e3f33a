"""Short commands import no torch for a list, a version or a mistake; and a shell completes commands, options and classes."""

import argparse
import dataclasses
import os
import pickle
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import get_args

import pytest

import flcog
import flcog.callbacks
import flcog.datamodules
from flcog.commands import completion
from flcog.commands.cli import COMMANDS
from flcog.datamodules import Partitioner
from flcog.run.export import Format

HEAVY = ("torch", "lightning", "numpy", "jsonargparse", "rich")

SHORT = f"""
import sys
from flcog.commands.cli import main
for words in ["--version"], ["--help"], ["configs", "quickstart"], ["configs", "nowhere"], [], ["fitt"], ["-c", "x.yaml", "fit"]:
    try:
        main(words)
    except SystemExit as ending:
        print("ended with", ending.code)
import flcog.callbacks, flcog.datamodules
print("loaded", [name for name in {HEAVY} if name in sys.modules])
"""


def test_what_needs_no_run_loads_no_torch() -> None:
    result = subprocess.run([sys.executable, "-c", SHORT], capture_output=True, text=True, timeout=60, check=True)
    assert f"flcog {flcog.__version__}\nended with 0\n" in result.stdout and result.stdout.count("ended with 2") == 4
    assert result.stdout.endswith("loaded []\n")
    assert "there is no command 'fitt'. Did you mean 'fit'? (the commands are " in result.stderr
    assert all(f" {name}" in result.stderr for name in COMMANDS)


@pytest.mark.skipif(sys.platform == "win32", reason="pipes there break by another error")
def test_a_reader_that_has_seen_enough_is_no_error() -> None:
    command = f"{sys.executable} -m flcog configs | {sys.executable} -c 'print(input()[:7])'"
    result = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=60)
    assert (result.stdout, result.stderr) == ("cifar10\n", "")


@pytest.mark.parametrize("package", [flcog, flcog.callbacks, flcog.datamodules])
def test_every_name_is_there_when_it_is_asked_for(package: ModuleType) -> None:
    assert set(package.__all__) <= set(dir(package))
    for name in package.__all__:
        value = getattr(package, name)
        if isinstance(value, type) and value.__module__.startswith("flcog."):
            assert value.__name__ == name
        assert vars(package)[name] is value, "and from then on without asking"
        if isinstance(value, type):
            assert pickle.loads(pickle.dumps(value)) is value
    with pytest.raises(AttributeError, match=rf"module '{package.__name__}' has no attribute 'FedPorx'"):
        _ = package.FedPorx
    with pytest.raises(ImportError, match="cannot import name 'FedPorx'"):
        exec(f"from {package.__name__} import FedPorx")


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_is_where_the_list_says(name: str) -> None:
    command = COMMANDS[name]
    assert callable(command.run) and command.summary in " ".join((command.run.__doc__ or "").split())


def completions(line: str, folder: Path) -> list[str]:
    """The completions at the end of a line, requested as by argcomplete. The packages in ``HEAVY`` cannot be imported for them."""
    answer = folder / "answer"
    asked = {"_ARGCOMPLETE": "1", "COMP_LINE": line, "COMP_POINT": str(len(line)), "_ARGCOMPLETE_STDOUT_FILENAME": str(answer)}
    asked |= {"COMP_TYPE": "9", "_ARGCOMPLETE_IFS": "\n", "_ARGCOMPLETE_SUPPRESS_SPACE": "1", "_ARGCOMPLETE_COMP_WORDBREAKS": ""}
    heavy = f"import sys; sys.modules |= dict.fromkeys({HEAVY}); from flcog.commands.cli import main; main()"
    command = [sys.executable, "-P", "-c", heavy]
    subprocess.run(command, env=os.environ | asked, cwd=folder, capture_output=True, timeout=60, check=True)
    return answer.read_text().split("\n")


COMPLETED = {
    "flcog va": ["validate"],
    "flcog fit --trainer.rou": ["--trainer.rounds"],
    "flcog fit -c quick": ["quickstart"],
    "flcog fit -c methods/fedpr": ["methods/fedprox"],
    "flcog fit -c mi": ["mine.yaml"],
    "flcog fit --trainer.callbacks+=FedPr": ["--trainer.callbacks+=FedProx"],
    "flcog fit --trainer.callbacks+ FedPr": ["FedProx"],
    "flcog fit --trainer.callbacks.FedPr": [
        f"--trainer.callbacks.FedProx.{name}" for name in ("mu", "start_round", "stop_round")
    ],
    "flcog fit --trainer.resume_changed ": ["true", "false"],
    "flcog fit --trainer.executor v": ["vmap", "vmap-patches"],
    "flcog fit --data Dig": ["Digits"],
    "flcog fit --data MNIST --data.da": ["--data.data_dir"],
    "flcog fit --data.partitioner Dir": ["Dirichlet"],
    "flcog validate --ck": ["--ckpt_path"],
    "flcog compare dig": ["digits"],
    "flcog compare digits --spread ": ["std", "sem", "interval"],
    "flcog configs quick": ["quickstart"],
    "flcog export RUN --format ": list(get_args(Format)),
}


QUICK = (
    "flcog va",
    "flcog fit -c quick",
    "flcog fit --trainer.callbacks+ FedPr",
    "flcog fit --data MNIST --data.da",
    "flcog compare dig",
)


@pytest.mark.parametrize("line", [pytest.param(line, marks=() if line in QUICK else pytest.mark.slow) for line in COMPLETED])
def test_a_shell_completes(line: str, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").touch()
    (tmp_path / "mine.txt").touch()
    assert sorted(completions(line, tmp_path)) == sorted(COMPLETED[line])


def test_a_shell_completes_every_command(tmp_path: Path) -> None:
    assert set(completions("flcog ", tmp_path)) >= COMMANDS.keys()


def offered(name: str) -> set[str]:
    parser = argparse.ArgumentParser()
    completion.add_options(parser, COMMANDS[name], ["flcog", name, "-"])
    return {option for action in parser._actions for option in action.option_strings}


OTHERWISE = {"feddisco-bound": {"--eta", "--sigma", "--tau", "--gap"}}
"""Options that are declared in a loop, which cannot be read off."""


@pytest.mark.slow
def test_the_classes_that_are_completed_are_those_that_there_are() -> None:
    exported = [getattr(package, name) for package in (flcog.callbacks, flcog.datamodules) for name in package.__all__]
    classes = [cls for cls in exported if isinstance(cls, type)]
    for kind, base in {
        "Callback": flcog.Callback,
        "Partitioner": Partitioner,
        "FederatedDataModule": flcog.FederatedDataModule,
    }.items():
        expected = {cls.__name__ for cls in classes if issubclass(cls, base) and cls is not base}
        assert set(completion._classes(kind)) == expected
    for cls in classes:
        if dataclasses.is_dataclass(cls):
            assert set(completion._arguments(cls.__name__)) == {field.name for field in dataclasses.fields(cls) if field.init}, (
                cls
            )
