"""Complete options and their values in a shell. They are read from source files, because importing torch would take seconds."""

import argparse
import ast
import importlib
import importlib.util
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from itertools import pairwise
from typing import Any, NoReturn

from flcog.commands import shipped_configs
from flcog.core.commands import Command, TrainerCommand
from flcog.core.lazy import definition, source_of

ASKED = "_ARGCOMPLETE"
"""A shell sets this environment variable to request completions."""

GROUPS = {"trainer": "FederatedTrainer", "model": "ClientModule", "data": "FederatedDataModule"}
"""The parts of a config, each with its base class."""

OWN_CLASSES = {
    "Callback": ("flcog.callbacks", {"Callback", "Method"}),
    "Partitioner": ("flcog.datamodules", {"Partitioner"}),
    "FederatedDataModule": ("flcog.datamodules", {"FederatedDataModule"}),
    "ClientModule": ("flcog", {"ClientModule"}),
}
"""For each type of option that takes a class: the package of our classes, and their base classes."""


def complete(parser_of_line: Callable[[Sequence[str]], argparse.ArgumentParser]) -> NoReturn:
    """Print completions for the shell, and exit.

    Args:
        parser_of_line: makes a parser from the words typed so far.
    """
    if importlib.util.find_spec("argcomplete") is None:
        raise SystemExit(1)
    import argcomplete

    argcomplete.autocomplete(parser_of_line(os.environ["COMP_LINE"][: int(os.environ["COMP_POINT"])].split()))
    raise SystemExit(1)


def add_options(parser: argparse.ArgumentParser, command: Command, words: Sequence[str]) -> None:
    """Add the options that can be completed to the parser of a subcommand.

    Args:
        parser: the subcommand's parser, still empty.
        command: the subcommand.
        words: the words typed so far. Options of a method or a data set are offered once the line names it.
    """
    if not isinstance(command, TrainerCommand):
        _add_declared(parser, command)
        return
    _add(parser, _config_files, "-c", "--config")
    for option in ("--print_config", "--seed_everything"):
        _add(parser, None, option)
    for option, kind in {"--model": "ClientModule", "--data": "FederatedDataModule", "--trainer.callbacks+": "Callback"}.items():
        _add(parser, partial(_classes, kind), option)
    own = _parameters(definition(command.place)).items()
    options = [(f"--{name}", annotation) for name, annotation in own if name not in ("model", "datamodule", "trainer")]
    for group, base in GROUPS.items():
        named = _arguments(_named(words, group) or base)
        options += [(f"--{group}.{name}", annotation) for name, annotation in named.items()]
    for option, annotation in [*options, *_options_of_callbacks(words[-1])]:
        _add(parser, partial(_values, annotation), option)


def _add(parser: argparse.ArgumentParser, completer: Callable[..., list[str]] | None, *names: str, **how: Any) -> None:
    """An option with a function that returns its values."""
    action = parser.add_argument(*names, **how)
    if completer is not None:
        action.completer = completer  # type: ignore[attr-defined]


def _config_files(prefix: str, **_: Any) -> list[str]:
    return [*shipped_configs.names(), *_yaml_files(prefix)]


def _yaml_files(prefix: str) -> list[str]:
    from argcomplete.completers import FilesCompleter

    return list(FilesCompleter(("yaml", "yml"))(prefix))


def _named(words: Sequence[str], group: str) -> str | None:
    """Return the flcog class that the line chooses for a part of the config, if any."""
    given = [value for option, value in pairwise(words) if option == f"--{group}"]
    given += [word.partition("=")[2] for word in words if word.startswith(f"--{group}=")]
    names = [value.rpartition(".")[2] for value in given]
    return next((name for name in names if any(_lineage("flcog", name))), None)


def _options_of_callbacks(word: str) -> Iterator[tuple[str, Any]]:
    """Yield options such as ``--trainer.callbacks.FedProx.mu`` of callbacks whose names fit the typed word.

    All of them would fill a screen.
    """
    if not word.startswith("--trainer.callbacks."):
        return
    for name in _classes("Callback"):
        option = f"--trainer.callbacks.{name}."
        if option.startswith(word) or word.startswith(option):
            yield from ((option + argument, annotation) for argument, annotation in _arguments(name).items())


# Commands that parse their words themselves ---------------------------------------------------------------------------------------


def _add_declared(parser: argparse.ArgumentParser, command: Command) -> None:
    """Add the arguments that a command's module declares with ``add_argument``."""
    for node in ast.walk(_tree(command.place.partition(":")[0])):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "add_argument":
            names = [str(argument.value) for argument in node.args if isinstance(argument, ast.Constant)]
            said = {keyword.arg: keyword.value for keyword in node.keywords}
            completer = partial(_constants, said["choices"]) if "choices" in said else None
            if names and names[0].startswith("-"):
                how = {"action": "store_true"} if "action" in said else {"nargs": "*" if "nargs" in said else None}
                _add(parser, completer, *names, **how)
            elif names:
                _add(parser, completer or POSITIONAL.get(command.name), names[0], nargs="*")


def _tables(prefix: str, **_: Any) -> list[str]:
    tables = [name.removeprefix("tables/") for name in shipped_configs.names() if name.startswith("tables/")]
    return [*tables, *_yaml_files(prefix)]


POSITIONAL: Mapping[str, Callable[..., list[str]]] = {"compare": _tables, "configs": lambda **_: shipped_configs.names()}
"""Completions of a command's first argument, if it is not a file."""


# Classes and functions, read from source files ------------------------------------------------------------------------------------


@cache
def _tree(module: str) -> ast.Module:
    return ast.parse(source_of(module))


@cache
def _names(module: str) -> dict[str, Any]:
    """Return the classes of a module. Imported classes are given as the module and the name of their definition."""
    found: dict[str, Any] = {}
    for node in _statements(_tree(module).body):
        if isinstance(node, ast.ClassDef):
            found[node.name] = node
        elif isinstance(node, ast.ImportFrom) and (origin := node.module or "").startswith("flcog") and origin != module:
            found |= {alias.asname or alias.name: (origin, alias.name) for alias in node.names}
    return found


def _statements(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements of a module and of its ``if TYPE_CHECKING:``."""
    for node in body:
        yield from node.body if isinstance(node, ast.If) else (node,)


def _lineage(module: str, name: str) -> Iterator[ast.ClassDef]:
    """Yield a class of flcog's and its base classes. A name without a module may also be a method's or a data set's."""
    packages = ("flcog", "flcog.callbacks", "flcog.datamodules") if module == "flcog" else (module,)
    package, found = next(((place, _names(place)[name]) for place in packages if name in _names(place)), (module, None))
    if isinstance(found, tuple):
        yield from _lineage(*found)
    elif found is not None:
        yield found
        for base in found.bases:
            if isinstance(base, ast.Name):
                yield from _lineage(package, base.id)


def _classes(kind: str, **_: Any) -> list[str]:
    """Return the names of our classes of a kind."""
    package, roots = OWN_CLASSES[kind]
    names = importlib.import_module(package).__all__
    return [name for name in names if name not in roots and any(cls.name in roots for cls in _lineage(package, name))]


def _arguments(name: str) -> dict[str, Any]:
    """Return the arguments of a class and its base classes with their annotations."""
    found: dict[str, Any] = {}
    for cls in _lineage("flcog", name):
        init = next((part for part in cls.body if isinstance(part, ast.FunctionDef) and part.name == "__init__"), None)
        if init is not None:
            found |= _parameters(init)
        elif any("dataclass" in ast.unparse(decorator) for decorator in cls.decorator_list):
            fields = [part for part in cls.body if isinstance(part, ast.AnnAssign) and "ClassVar" not in ast.unparse(part)]
            found |= {ast.unparse(field.target): field.annotation for field in fields}
    return found


def _parameters(function: Any) -> dict[str, Any]:
    arguments = [*function.args.args, *function.args.kwonlyargs]
    return {argument.arg: argument.annotation for argument in arguments if argument.arg != "self"}


def _values(annotation: Any, **_: Any) -> list[str]:
    """Return the values that an option of this type can have."""
    if annotation is None:
        return []
    literals = [part for part in ast.walk(annotation) if isinstance(part, ast.Subscript) and ast.unparse(part.value) == "Literal"]
    names = {part.id for part in ast.walk(annotation) if isinstance(part, ast.Name)}
    truths = ["true", "false"] if "bool" in names else []
    return [*(value for literal in literals for value in _constants(literal)), *truths] + [
        name for kind in OWN_CLASSES if kind in names for name in _classes(kind)
    ]


def _constants(node: ast.AST, **_: Any) -> list[str]:
    return [part.value for part in ast.walk(node) if isinstance(part, ast.Constant) and isinstance(part.value, str)]
