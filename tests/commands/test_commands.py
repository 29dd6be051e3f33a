"""The list of commands: the help is taken from each command's docstring, and families of methods add their own commands."""

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
    assert shown.startswith(f"usage: flcog {name} [-h]") and COMMANDS[name].summary in shown and ">>>" not in shown


REFUSED = {
    "--jobs 2 compare": "the command comes first, as in flcog fit -c configs/quickstart.yaml: the commands are fit, ",
    "compare": "flcog compare takes one table and one --out, or several with --reproduced; flcog compare --help",
    "compare t.yaml --jobs 0": "flcog compare: argument --jobs: invalid PositiveInt value: '0'; flcog compare --help",
    "methods --html": "flcog methods: unrecognized arguments: --html; flcog methods --help lists its options",
}


@pytest.mark.parametrize("words", REFUSED)
def test_a_mistake_gets_one_line(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit:
        main(words.split())
    shown = capsys.readouterr()
    assert exit.value.code == 2 and not shown.out
    assert shown.err.startswith(f"flcog: error: {REFUSED[words]}") and len(shown.err.splitlines()) == 1, shown.err
