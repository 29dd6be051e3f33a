"""What is imported only where it is needed."""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]


def imported_at_once(node: ast.AST) -> Iterator[str]:
    """The packages that a module imports when it is imported itself: not what its functions import, nor what only mypy reads."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
            continue
        if isinstance(child, ast.Import):
            yield from (alias.name.split(".")[0] for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            yield (child.module or "").split(".")[0]
        else:
            yield from imported_at_once(child)


def test_torchvision_is_imported_only_where_a_model_or_data_set_needs_it() -> None:
    """Read from the source: a process cannot tell, because Lightning imports torchmetrics, whose image metrics import torchvision."""
    files = [path for folder in ("flcog", "callbacks", "datamodules") for path in (ROOT / folder).rglob("*.py")]
    early = [str(path.relative_to(ROOT)) for path in files if "torchvision" in imported_at_once(ast.parse(path.read_text()))]
    assert len(files) > 100 and not early
