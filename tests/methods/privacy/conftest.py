"""A stand-in for the accountant, whose numbers take seconds."""

from typing import Any

import pytest

from flcog.callbacks.privacy import dpsgd, guarantee


@pytest.fixture
def quick_accountant(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """Each round, or use of a sample, costs epsilon 1. Returns the arguments of all calls."""
    asked: list[tuple[Any, ...]] = []

    def epsilon(*arguments: Any) -> float:
        asked.append(arguments)
        return float(arguments[2])

    for module in (dpsgd, guarantee):
        monkeypatch.setattr(module, "epsilon", epsilon)
    return asked
