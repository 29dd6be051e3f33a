"""Packages that import a name at its first use, so that ``import flcog`` and short commands do not import torch."""

import ast
import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterable
from importlib.machinery import PathFinder
from typing import Any


def lazily(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Make a package's ``__getattr__`` and ``__dir__``, for the names that its ``__init__`` imports under ``TYPE_CHECKING``.

    Type checkers and editors read these imports, and so does this function. No second list of names is needed.
    """
    module = sys.modules[package]
    conditions = [statement for statement in ast.parse(source_of(package)).body if isinstance(statement, ast.If)]
    places = imported_names(conditions[0].body)  # the first condition is TYPE_CHECKING

    def __getattr__(name: str) -> Any:
        if name not in places:
            if not name.startswith("_") and importlib.util.find_spec(f"{package}.{name}") is not None:
                return importlib.import_module(f"{package}.{name}")  # as flcog.callbacks after import flcog
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        origin, original = places[name]
        inside = f"{origin}.{original}"
        value = importlib.import_module(inside) if origin == package else getattr(importlib.import_module(origin), original)
        setattr(module, name, value)
        return value

    return __getattr__, lambda: sorted({*vars(module), *places})


def load(package: Any) -> None:
    """Import everything that a package exports. The command line searches the subclasses of a class, which must be imported."""
    for name in package.__all__:
        getattr(package, name)


def source_of(module: str) -> str:
    """Return the source of a module without importing it, for example to read a docstring.

    Only the first two of its parent packages are imported, and these import nothing else.
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
    """The syntax tree of a class or a function, given as "module:Class.function". The module is not imported."""
    module, names = place.split(":")
    node: Any = ast.parse(source_of(module))
    for name in names.split("."):
        node = next(part for part in node.body if getattr(part, "name", None) == name)
    return node


def imported_names(statements: Iterable[ast.stmt]) -> dict[str, tuple[str, str]]:
    """The names that ``from ... import`` statements import, each with its module and its name in that module."""
    imports = [statement for statement in statements if isinstance(statement, ast.ImportFrom)]
    return {alias.asname or alias.name: (str(statement.module), alias.name) for statement in imports for alias in statement.names}
