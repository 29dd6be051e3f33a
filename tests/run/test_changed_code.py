"""A resumed run says which of the user's own classes have other code than before, and no run branches from rounds of other code."""

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from harness import classifier, fit

from flcog.callbacks import FedProx
from flcog.run import users_code

CODE = '''
from dataclasses import dataclass
import flcog
from harness import NUM_CLASSES, NUM_FEATURES, TinyData
from torch import nn

class Base(nn.Module):
    def forward(self, x):
        return self.head(x)

class Net(Base):
    """A linear model."""
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(NUM_FEATURES, NUM_CLASSES)

class Data(TinyData):
    pass

@dataclass(frozen=True)
class Pull(flcog.Method):
    strength: float = 0.1

    def loss(self, apply, params, batch, task_loss, ctx):
        return self.strength * sum((params[name] - value).square().sum() for name, value in ctx.received.params.items())
'''


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A function that writes a user's module with changes, and imports it."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def written(**changes: str) -> Any:
        code = CODE
        for old, new in changes.values():
            assert old in code
            code = code.replace(old, new)
        (tmp_path / "mine.py").write_text(code)
        sys.modules.pop("mine", None)
        return import_module("mine")

    yield written
    sys.modules.pop("mine", None)


def notes(tmp_path: Path, mine: Any, run: Path | None = None, rounds: int = 2, **options: Any) -> tuple[Path, list[str]]:
    if run is not None:
        options["ckpt_path"] = str(run)
    trainer = fit(
        tmp_path / "runs",
        mine.Pull(),
        module=classifier(network=mine.Net),
        data=mine.Data(),
        rounds=rounds,
        local_steps=2,
        **options,
    )
    assert trainer.run_dir is not None
    return trainer.run_dir, [note for note in trainer.notes if note.startswith("changed: ")]


def test_a_resumed_run_names_classes_whose_code_has_changed(tmp_path: Path, mine: Any) -> None:
    run, said = notes(tmp_path, mine())
    assert said == []
    run, said = notes(
        tmp_path, mine(comment=("    pass", "    # A comment.\n    pass"), word=("A linear model", "One layer")), run, 3
    )
    assert said == [], "comments and docstrings are no code"
    method = ("return self.strength * sum", "return 2 * self.strength * sum")
    run, said = notes(tmp_path, mine(base=("self.head(x)", "self.head(2 * x)"), method=method), run, 4)
    assert said == ["changed: the code of mine.Base, mine.Pull has changed since round 3"]
    run, said = notes(
        tmp_path, mine(base=("self.head(x)", "self.head(2 * x)"), method=method, data=("pass", "extra = 1")), run, 5
    )
    assert said == ["changed: the code of mine.Data has changed since round 4"], "the run is now the changed one"


def test_code_that_no_file_has_is_left_out() -> None:
    space: dict[str, Any] = {"__name__": "__main__"}
    exec("class Typed:\n    pass", space)
    assert users_code.code_of({"a": [space["Typed"](), 3, FedProx(mu=0.1)]}) == {}
