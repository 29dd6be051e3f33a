"""The list of commands: each says what it does in one place, and those of methods come with their families."""

import pytest

import flcog.callbacks
from flcog.commands.cli import COMMANDS, main
from flcog.core.commands import TrainerCommand


def printed(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as exit:
        main(arguments)
    assert not exit.value.code
    return " ".join(capsys.readouterr().out.split())


def test_the_help_lists_each_with_the_first_paragraph_of_its_docstring(capsys: pytest.CaptureFixture[str]) -> None:
    listed = printed(["--help"], capsys)
    assert all(f"{name} {command.summary}" in listed for name, command in COMMANDS.items())
    assert {command.name for command in flcog.callbacks.COMMANDS} < COMMANDS.keys()


@pytest.mark.parametrize("name", [name for name, command in COMMANDS.items() if not isinstance(command, TrainerCommand)])
def test_its_own_help_has_its_name_and_docstring(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    shown = printed([name, "--help"], capsys)
    assert shown.startswith(f"usage: flcog {name} [-h]") and COMMANDS[name].summary in shown


def test_options_before_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--rounds", "3"])
    assert "give a command, as in flcog fit" in capsys.readouterr().err
