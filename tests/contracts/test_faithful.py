"""The faithful step gives the same bits as the pure step, with every method."""

from typing import Any

import lightning as L
import pytest
import torch

from contracts.case import Case
from contracts.registry import CASES, client_states, run

pytestmark = pytest.mark.filterwarnings("error")


class Watch(L.Callback):
    """A hook of a step, which only the faithful step calls."""

    steps = 0

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.steps += 1


QUICK = ("SCAFFOLD", "FedSAM", "MOON-batchnorm", "FedPVR")
"""A correction, a wrapped gradient, a loss and a hook after the step."""


@pytest.mark.parametrize(
    "case", [pytest.param(case, id=name, marks=[pytest.mark.slow] * (name not in QUICK)) for name, case in CASES.items()]
)
def test_the_faithful_step_gives_the_same_bits(case: Case) -> None:
    watch = Watch()
    pure, faithful = run(case, case.method), run(case, case.method, watch)
    assert watch.steps >= sum(work.num_steps for works in faithful.works for work in works) > 0
    assert f"one client at a time: {Watch.__name__}.on_train_batch_end" in " ".join(faithful.notes)
    assert pure.state.keys() == faithful.state.keys()
    for name, value in pure.state.items():
        assert torch.equal(faithful.state[name], value), name
    before, after = client_states(pure), client_states(faithful)
    assert before.keys() == after.keys() and all(torch.equal(after[name], value) for name, value in before.items())
    assert faithful.rows == pure.rows
