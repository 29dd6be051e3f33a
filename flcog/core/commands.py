"""A subcommand of ``flcog``: its name and the function that runs it. Families of methods list their own."""

import argparse
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

from flcog.core.text import first_paragraph


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ValueError(f"{self.prog}: {message}; {self.prog} --help lists its options")


@dataclass(frozen=True)
class Command:
    """A subcommand with options of its own, which neither builds a model nor loads data from a config.

    Args:
        name: what users type.
        run: called with the words that follow the name. Its docstring is the command's help.
    """

    name: str
    run: Callable[..., Any]

    @property
    def summary(self) -> str:
        """The help in one line, for the list of commands."""
        return first_paragraph(self.run)

    def parser(self, **options: Any) -> argparse.ArgumentParser:
        """A parser for the command's own options, with its name and help."""
        return _Parser(prog=f"flcog {self.name}", description=inspect.getdoc(self.run), **options)


class TrainerCommand(Command):
    """A subcommand on what a config describes: ``run(trainer, model, datamodule, ...)``.

    Its further parameters are the command's options, with their types from the signature and their help from the docstring. What it
    returns, figures by name or nothing, is printed.
    """
