"""Large packages are imported only where they are needed."""

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def imported_at_once(node: ast.AST) -> Iterator[str]:
    """The packages that importing a module imports, without the imports inside functions and under TYPE_CHECKING."""
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


@pytest.mark.slow
def test_torchvision_is_imported_only_where_a_model_or_data_set_needs_it() -> None:
    files = [path for folder in ("flcog", "callbacks", "datamodules") for path in (ROOT / folder).rglob("*.py")]
    early = [str(path.relative_to(ROOT)) for path in files if "torchvision" in imported_at_once(ast.parse(path.read_text()))]
    assert len(files) > 100 and not early


LATE = {"sklearn", "pandas", "wandb"}
"""Packages that are slow to import and not needed in the first round of a run."""

FIRST_ROUND = f"""
import sys
import flcog, flcog.datamodules

class Look(flcog.Callback):
    def on_round_start(self, run, round, cohort):
        assert not (early := {LATE} & sys.modules.keys()), early

trainer = flcog.FederatedTrainer(rounds=1, local_steps=1, accelerator="cpu", callbacks=[Look()])
trainer.fit(flcog.Classifier(flcog.models.SimpleCNN(1, 10)), flcog.datamodules.Digits(num_clients=2))
"""


@pytest.mark.slow
def test_the_first_round_starts_without_large_packages(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("WANDB")}
    environment |= {"HOME": str(tmp_path), "NETRC": str(tmp_path / "none")}
    subprocess.run([sys.executable, "-c", FIRST_ROUND], cwd=tmp_path, env=environment, check=True)
