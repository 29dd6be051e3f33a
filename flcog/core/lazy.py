"""Packages that import their names when these are first asked for, so that ``import flcog`` and short commands need no torch."""

import ast
import importlib
import importlib.util
import sys
from collections.abc import Callable
from importlib.machinery import PathFinder
from typing import Any


def lazily(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """A package's ``__getattr__`` and ``__dir__``, for the names that its ``__init__`` imports under ``TYPE_CHECKING``.

    There type checkers and editors find them, and this function where they come from: no name stands in a second list.
    """
    module = sys.modules[package]
    places = {name: place for statement in _type_checking(source_of(package)) for name, place in _imported(statement)}

    def __getattr__(name: str) -> Any:
        if name not in places:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        origin, original = places[name]
        inside = f"{origin}.{original}"
        value = importlib.import_module(inside) if origin == package else getattr(importlib.import_module(origin), original)
        setattr(module, name, value)
        return value

    return __getattr__, lambda: sorted({*vars(module), *places})


def load(package: Any) -> None:
    """Import all that a package exports: for who looks among the subclasses of a class, as the command line does."""
    for name in package.__all__:
        getattr(package, name)


def source_of(module: str) -> str:
    """The text of a module, which is not imported; of a function's docstring one needs no more.

    Nor are the packages that it is in, but for the first two, which import nothing.
    """
    first, second, *inner = [*module.split("."), ""]
    spec = importlib.util.find_spec(f"{first}.{second}".rstrip("."))
    for name in filter(None, inner):
        assert spec is not None
        spec = PathFinder.find_spec(f"{spec.name}.{name}", spec.submodule_search_locations)
    assert spec is not None and spec.loader is not None
    text = spec.loader.get_source(module)  # type: ignore[attr-defined]
    assert isinstance(text, str)
    return text


def definition(place: str) -> Any:
    """The syntax tree of a class or a function, given as "module:Class.function", whose module is not imported."""
    module, names = place.split(":")
    node: Any = ast.parse(source_of(module))
    for name in names.split("."):
        node = next(part for part in node.body if getattr(part, "name", None) == name)
    return node


def _type_checking(source: str) -> list[ast.stmt]:
    blocks = [node for node in ast.parse(source).body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    return [statement for block in blocks for statement in block.body]


def _imported(statement: ast.stmt) -> list[tuple[str, tuple[str, str]]]:
    """Each name with the module it comes from, and what it is called there."""
    assert isinstance(statement, ast.ImportFrom) and statement.module is not None
    return [(alias.asname or alias.name, (statement.module, alias.name)) for alias in statement.names]
