"""Runs that are killed at the start of a round, for the tests of observers."""

from pathlib import Path
from typing import Any

import pytest
from harness import fit

from flcog.method import Callback


class Stop(Callback):
    """Kills the run at the start of a round."""

    def __init__(self, round: int) -> None:
        self.round = round

    def on_round_start(self, run: Any, round: int, cohort: list[int]) -> None:
        if round == self.round:
            raise KeyboardInterrupt


def killed(root: Path, *callbacks: Callback, at: int, **options: Any) -> Path:
    """A run killed in round ``at``; returns its directory."""
    with pytest.raises(KeyboardInterrupt):
        fit(root, *callbacks, Stop(at), **options)
    return max(root.iterdir())
