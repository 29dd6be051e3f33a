"""Subcommands of ``flcog``: a name and the place of a function. Families of methods list their own subcommands."""

import argparse
import inspect
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

from flcog.core.lazy import documentation
from flcog.core.text import first_paragraph


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ValueError(f"{self.prog}: {message}; {self.prog} --help lists its options")


@dataclass(frozen=True)
class Command:
    """A subcommand with its own options, which neither builds a model nor loads data from a config.

    Args:
        name: the subcommand's name.
        place: its function as "module:function", which is called with the words after the name. The module is imported when the
            command runs. The function's docstring is the command's help.
    """

    name: str
    place: str

    @property
    def run(self) -> Callable[..., Any]:
        return pkgutil.resolve_name(self.place)

    @property
    def summary(self) -> str:
        """The help in one line for the list of commands, read without importing the function."""
        return first_paragraph(documentation(self.place))


@dataclass(frozen=True)
class TrainerCommand(Command):
    """A subcommand on the objects that a config describes: ``run(trainer, model, datamodule, ...)``.

    Its further parameters are the command's options, with their types from the signature and their help from the docstring.

    Args:
        name, place: as for all commands.
        runs_model: False for a command on data alone, which gets None for the trainer, and also for the model if none is given.
    """

    runs_model: bool = True


def parser_of(name: str, run: Callable[..., Any], **options: Any) -> argparse.ArgumentParser:
    """A parser for a command's options, with its function's docstring as help, without examples."""
    return _Parser(prog=f"flcog {name}", description=(inspect.getdoc(run) or "").partition(">>>")[0].rstrip(), **options)
