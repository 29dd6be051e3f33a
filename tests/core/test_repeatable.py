"""While a run computes, cuDNN is deterministic, so that a run on a GPU gives the same bits every time."""

from typing import Any

import pytest
import torch
from harness import TinyData, classifier, make_trainer

import flcog


class Watching(flcog.Method):
    """Records cuDNN's setting while clients train."""

    def __init__(self) -> None:
        self.seen: list[bool] = []

    def loss(self, apply: Any, params: Any, batch: Any, task_loss: torch.Tensor, ctx: Any) -> torch.Tensor:
        self.seen.append(torch.backends.cudnn.deterministic)
        return 0 * task_loss


@pytest.mark.parametrize("before", [False, True])
def test_convolutions_are_repeatable_for_as_long_as_a_run_computes(before: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", before)
    watching = Watching()
    trainer = make_trainer(None, watching, rounds=1)
    trainer.prepare(classifier(), TinyData())
    trainer.train_round()
    assert set(watching.seen) == {True} and torch.backends.cudnn.deterministic is before
