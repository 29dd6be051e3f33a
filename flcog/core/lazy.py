"""Packages that import a name at its first use, so that ``import flcog`` and short commands do not import torch."""

import ast
import importlib
import importlib.util
import sys
from collections.abc import Callable
from typing import Any

from flcog.core.text import guess


def lazily(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Make a package's ``__getattr__`` and ``__dir__``, for the names that its ``__init__`` imports under ``TYPE_CHECKING``.

    Type checkers and editors read these imports, and so does this function. No second list of names is needed.
    """
    module = sys.modules[package]
    condition = next(statement for statement in _tree(package).body if isinstance(statement, ast.If))
    imports = [statement for statement in condition.body if isinstance(statement, ast.ImportFrom)]
    places = {alias.asname or alias.name: (str(each.module), alias.name) for each in imports for alias in each.names}

    def __getattr__(name: str) -> Any:
        if name == "__all__":
            return sorted(places)
        if name in places:
            origin, original = places[name]
            own = origin == package  # a module of the package itself
            value = importlib.import_module(f"{origin}.{original}" if own else origin)
            value = value if own else getattr(value, original)
            setattr(module, name, value)
            return value
        if not name.startswith("_") and importlib.util.find_spec(f"{package}.{name}") is not None:
            return importlib.import_module(f"{package}.{name}")  # as flcog.callbacks after import flcog
        raise AttributeError(f"module {package!r} has no attribute {name!r}.{guess(name, places)}")

    return __getattr__, lambda: sorted({*vars(module), *places})


def exported(package: Any) -> dict[str, Any]:
    """The classes and modules that a package exports, imported: the command line searches the subclasses of a class."""
    return {name: getattr(package, name) for name in package.__all__ if name[0].isupper() or name in ("models", "schedules")}


def documentation(place: str) -> str:
    """Return the docstring of a function, given as "module:Class.function", without importing its module."""
    module, names = place.split(":")
    node: Any = _tree(module)
    for name in names.split("."):
        node = next(part for part in node.body if getattr(part, "name", None) == name)
    return ast.get_docstring(node) or ""


def _tree(module: str) -> ast.Module:
    """Parse a module. Only its parent packages are imported, and those of flcog import nothing large."""
    spec = importlib.util.find_spec(module)
    assert spec is not None and spec.origin is not None
    with open(spec.origin, encoding="utf-8") as file:
        return ast.parse(file.read())
