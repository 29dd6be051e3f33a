"""The registry of methods: this folder tests every method (or form of it) through a registered :class:`Case`.

To add a method: write ``tests/reference/<method>.py`` with ``run(problem, **hyper_parameters) -> state_dict``, and
``tests/methods/test_<method>.py`` with a dictionary ``CASES`` of cases by name, and the tests that concern this method alone.
"""

import importlib
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any

import pytest
import torch
from harness import TESTS, RecordingTrainer, train

import flcog
from contracts.case import Case
from flcog.client.runtime import TRAINING
from flcog.method import Params


def files() -> Iterator[ModuleType]:
    """Every file of tests under ``tests/methods``."""
    for path in sorted((TESTS / "methods").rglob("test_*.py")):
        yield importlib.import_module(".".join(path.relative_to(TESTS).with_suffix("").parts))


def collected() -> dict[str, Case]:
    """Merge the dictionaries ``CASES`` of all those files."""
    parts = [file.CASES for file in files() if hasattr(file, "CASES")]
    merged = {name: case for part in parts for name, case in part.items()}
    assert len(merged) == sum(map(len, parts)), "a case is registered twice"
    return merged


CASES = collected()
FIRST = {type(case.method): name for name, case in reversed(CASES.items())}


def each(cases: Mapping[str, Case]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("case", cases.values(), ids=cases.keys())


def first_quickly(cases: Mapping[str, Case]) -> pytest.MarkDecorator:
    """Parametrize a test that needs several runs: the first case of each method is a quick test, and the others are slow tests."""
    params = [
        pytest.param(case, id=name, marks=() if FIRST[type(case.method)] == name else pytest.mark.slow)
        for name, case in cases.items()
    ]
    return pytest.mark.parametrize("case", params)


def run(case: Case, *callbacks: flcog.Callback, **options: Any) -> RecordingTrainer:
    """Run the case's setting with these callbacks in place of its method."""
    return train(
        *case.beside, *callbacks, **({"module": case.module(case.optimizer), "data": case.data()} | case.options | options)
    )


def client_states(trainer: RecordingTrainer) -> Params:
    states = {
        k: {name: slot for name, slot in own.items() if name != TRAINING} for k, own in trainer.run.clients.by_client.items()
    }
    leaves, _ = torch.utils._pytree.tree_flatten_with_path(states)
    return {torch.utils._pytree.keystr(path): leaf for path, leaf in leaves}
