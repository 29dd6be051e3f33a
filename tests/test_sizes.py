"""Files, functions and signatures stay small. Each exception has its reason."""

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

from harness import ROOT

FILES = sorted(path for room in ("flcog", "callbacks", "datamodules") for path in (ROOT / room).rglob("*.py"))

LINES_OF_A_FILE, LINES_OF_A_FUNCTION, PARAMETERS = 300, 40, 6

OPTIONS = "each parameter is an option of the user's, in YAML and in Python"
PARTS = "the parts of an object that is made at one place"

LONG = {"flcog/trainer_arguments.py TrainerArguments.__init__": "one option of the trainer in each line"}

WIDE = {
    "flcog/trainer_arguments.py TrainerArguments.__init__": OPTIONS,
    "flcog/commands/federated_cli.py FederatedCLI.__init__": "the arguments of LightningCLI",
    "flcog/commands/bench/command.py bench": OPTIONS,
    "flcog/data/module.py FederatedDataModule.__init__": OPTIONS,
    "flcog/models/images.py LeNet.__init__": OPTIONS,
    "flcog/core/fabric.py make_fabric": "the arguments of Lightning's Fabric",
    "flcog/evaluation.py Evaluator.__init__": PARTS,
    "flcog/run/session.py Session.__init__": PARTS,
    "callbacks/fedcog/generation.py generate": OPTIONS,
    "callbacks/vhl.py virtual_set": "everything that the cached images depend on",
    "callbacks/parts/input_gradient.py _plain": "the arguments of torch.conv2d",
    "datamodules/partitioners/draws.py draw_class_cuts": "a split's options, its samples and its random numbers",
}
"""Signatures with more parameters. The constructors of data sets in ``datamodules/`` are not listed: their parameters are options."""


@functools.cache
def functions(path: Path) -> list[tuple[str, ast.FunctionDef]]:
    """The functions of a file, each with the file's path and its name within the file."""

    def within(node: ast.AST, prefix: str) -> Iterator[tuple[str, ast.FunctionDef]]:
        for child in ast.iter_child_nodes(node):
            name = getattr(child, "name", None)
            if isinstance(child, ast.FunctionDef):
                yield f"{path.relative_to(ROOT)} {prefix}{name}", child
            yield from within(child, f"{prefix}{name}." if name else prefix)

    return list(within(ast.parse(path.read_text()), ""))


def length(function: ast.FunctionDef) -> int:
    """The number of lines of the signature and the code, without the docstring."""
    first = function.body[0]
    documented = ast.get_docstring(function) is not None
    return (function.end_lineno or 0) - function.lineno + 1 - (((first.end_lineno or 0) - first.lineno + 1) if documented else 0)


def parameters(function: ast.FunctionDef) -> int:
    given = function.args
    names = [one.arg for one in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
    return len([name for name in names if name not in ("self", "cls")])


def test_files() -> None:
    assert FILES
    assert {str(path): count for path in FILES if (count := path.read_text().count("\n")) > LINES_OF_A_FILE} == {}


def test_functions() -> None:
    found = {name: length(function) for path in FILES for name, function in functions(path)}
    assert {name for name, count in found.items() if count > LINES_OF_A_FUNCTION} == LONG.keys()


def test_signatures() -> None:
    found = {name: parameters(function) for path in FILES for name, function in functions(path)}
    wide = {name for name, count in found.items() if count > PARAMETERS}
    assert {name for name in wide if not (name.startswith("datamodules/") and name.endswith(".__init__"))} == WIDE.keys()
