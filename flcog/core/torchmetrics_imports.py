"""Imports torchmetrics without its optional dependencies, which take two seconds to load and which few metrics need.

Lightning imports torchmetrics for two classes. The package then imports all its metrics, and the metrics on images and sound import
torchvision, torch's compiler and ``scipy.signal``. ``defer`` lets ``torchmetrics`` and ``torchmetrics.functional`` import a name when
it is first used. Every name stays available.
"""

import ast
import importlib
import importlib.util
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import ModuleType
from typing import Any

from flcog.core.lazy import imported_names

PACKAGES = ("torchmetrics", "torchmetrics.functional")


def defer() -> None:
    """Change how ``torchmetrics`` is imported in this process. If it is imported already, nothing changes."""
    if "torchmetrics" not in sys.modules:
        sys.meta_path.insert(0, _Finder())


class _Finder:
    """The first finder that Python asks for a module's file."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path, target) if name in PACKAGES else None
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _Loader(spec.loader.name, spec.loader.path)
        return spec


class _Loader(SourceFileLoader):
    def exec_module(self, module: ModuleType) -> None:
        """Run the package's own statements, and delay its imports of metrics until a name is used."""
        statements = ast.parse(self.get_data(self.path)).body
        waiting = [statement for statement in statements if _can_wait(statement)]
        try:
            self._run([statement for statement in statements if statement not in waiting], module)
        except NameError:  # another version of torchmetrics may use an imported name at once
            super().exec_module(module)
            return
        places = imported_names(waiting)

        def __getattr__(name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(f"module {self.name!r} has no attribute {name!r}")
            origin, original = places.get(name, (self.name, name))
            if origin != self.name:
                setattr(module, name, getattr(importlib.import_module(origin), original))
            elif importlib.util.find_spec(f"{origin}.{original}"):
                importlib.import_module(f"{origin}.{original}")
            else:  # defined under a condition, or nowhere
                self._run(waiting, module)
            if name not in vars(module):
                raise AttributeError(f"module {self.name!r} has no attribute {name!r}")
            return vars(module)[name]

        vars(module).update(__getattr__=__getattr__, __dir__=lambda: sorted({*vars(module), *places}))
        importlib.import_module("torchmetrics.utilities")  # its modules import each other in a circle that must begin here

    def _run(self, statements: list[ast.stmt], module: ModuleType) -> None:
        exec(compile(ast.Module(statements, []), self.path, "exec"), vars(module))


def _can_wait(statement: ast.stmt) -> bool:
    """Whether the statement imports metrics, or scipy, which the audio metrics import again."""
    modules = [
        name
        for node in ast.walk(statement)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in ([str(node.module)] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names])
    ]
    return any(name.split(".")[0] == "scipy" or (name.startswith("torchmetrics") and "__about__" not in name) for name in modules)
