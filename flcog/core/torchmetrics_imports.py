"""Delays torchmetrics' imports of all its metrics until one is used.

They load torchvision, torch's compiler, and transformers and scipy where these are installed: two seconds of each start. Lightning needs
the class ``Metric`` alone.
"""

import ast
import importlib
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import ModuleType

from flcog.core.lazy import at_first_use


def delay() -> None:
    """Delay them in this process, unless torchmetrics is imported already."""
    if "torchmetrics" not in sys.modules:
        sys.meta_path.insert(0, _Finder())


class _Finder:
    """The first finder that Python asks for a module's file."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path, target) if name in ("torchmetrics", "torchmetrics.functional") else None
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _Loader(name, spec.loader.path)
        return spec


class _Loader(SourceFileLoader):
    def exec_module(self, module: ModuleType) -> None:
        statements = ast.parse(self.get_data(self.path)).body
        delayed = [each for each in statements if any(map(_has_metrics, ast.walk(each)))]
        code = ast.Module([each for each in statements if each not in delayed], [])
        exec(compile(code, self.path, "exec"), vars(module))
        imports = [node for each in delayed for node in ast.walk(each) if isinstance(node, ast.ImportFrom)]
        vars(module)["__getattr__"], vars(module)["__dir__"] = at_first_use(self.name, imports)
        # The package's modules import each other in a circle, which must begin here.
        importlib.import_module("torchmetrics.utilities")


def _has_metrics(node: ast.AST) -> bool:
    module = node.module or "" if isinstance(node, ast.ImportFrom) else ""
    return module.split(".")[0] == "torchmetrics" and not module.startswith(("torchmetrics.__about__", "torchmetrics.utilities"))
