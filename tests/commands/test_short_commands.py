"""Short commands import no torch for a list, a version or a mistake; and a shell completes commands, options and classes."""

import os
import pickle
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import flcog
import flcog.callbacks
import flcog.datamodules
from flcog.commands.cli import COMMANDS

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
    with pytest.raises(AttributeError, match=rf"module '{package.__name__}' has no attribute 'FedPorx'\."):
        _ = package.FedPorx
    with pytest.raises(ImportError, match="cannot import name 'FedPorx'"):
        exec(f"from {package.__name__} import FedPorx")


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_is_where_the_list_says(name: str) -> None:
    command = COMMANDS[name]
    assert callable(command.run) and command.summary in " ".join((command.run.__doc__ or "").split())


def completions(line: str, folder: Path) -> list[str]:
    """The completions at the end of a line, requested as by argcomplete."""
    answer = folder / "answer"
    asked = {"_ARGCOMPLETE": "1", "COMP_LINE": line, "COMP_POINT": str(len(line)), "_ARGCOMPLETE_STDOUT_FILENAME": str(answer)}
    asked |= {"COMP_TYPE": "9", "_ARGCOMPLETE_IFS": "\n", "_ARGCOMPLETE_SUPPRESS_SPACE": "1", "_ARGCOMPLETE_COMP_WORDBREAKS": ""}
    command = [sys.executable, "-P", "-m", "flcog"]
    subprocess.run(command, env=os.environ | asked, cwd=folder, capture_output=True, timeout=120, check=True)
    return answer.read_text().split("\n")


def test_a_shell_completes_commands(tmp_path: Path) -> None:
    assert set(completions("flcog ", tmp_path)) >= COMMANDS.keys() and completions("flcog va", tmp_path) == ["validate"]


@pytest.mark.slow
def test_a_shell_completes_options(tmp_path: Path) -> None:
    """By jsonargparse, which needs the command's modules."""
    assert completions("flcog fit --trainer.rou", tmp_path) == ["--trainer.rounds"]
    assert sorted(completions("flcog fit -c x --trainer.resume_changed ", tmp_path)) == ["false", "true"]
