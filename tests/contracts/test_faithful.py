"""The faithful step gives the same bits as the pure step, with every method."""

from typing import Any

import lightning as L
import pytest
import torch

from contracts.case import Case
from contracts.registry import CASES, client_states, run
from flcog.client.local_hooks import CHANGES_A_STEP

pytestmark = pytest.mark.filterwarnings("error")


class Watch(L.Callback):
    """A callback with a hook of training steps, which only the faithful step calls."""

    steps = 0

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.steps += 1


QUICK = ("SCAFFOLD", "FedSAM", "MOON-batchnorm", "Ditto")
"""They use correct_gradient, wrap_gradient, loss and after_step, in this order."""


HOOKED = {name: case for name, case in CASES.items() if not case.method.maps_gradient}


@pytest.mark.parametrize(
    "case", [pytest.param(case, id=name, marks=[pytest.mark.slow] * (name not in QUICK)) for name, case in HOOKED.items()]
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


def test_hooks_of_a_step_are_refused_beside_gradients_of_samples() -> None:
    case = CASES["DPSGD"]
    with pytest.raises(ValueError, match=r"^DPSGD computes the gradients of many samples .*\(Watch.on_train_batch_end\): remove"):
        run(case, case.method, Watch())


class Manual:
    """The same training step with manual optimisation."""

    def training_step(self: Any, batch: Any, batch_idx: int) -> None:
        optimizer = self.optimizers()
        optimizer.zero_grad()
        self.manual_backward(super().training_step(batch, batch_idx))  # type: ignore[misc]
        optimizer.step()


def acts_on_models(case: Case) -> bool:
    """Whether the method needs neither the loss nor the gradient of a step."""
    return not any(map(case.method.overrides, CHANGES_A_STEP)) and not case.method.differentiates_loss


MANUAL = {name: case for name, case in CASES.items() if acts_on_models(case)}


@pytest.mark.parametrize(
    "case", [pytest.param(case, id=name, marks=[pytest.mark.slow] * (name != "FedWalk")) for name, case in MANUAL.items()]
)
def test_manual_optimisation_gives_the_same_bits(case: Case) -> None:
    """This holds for the methods that only read and change models."""
    module = case.module(case.optimizer)
    module.__class__ = type("Manual", (Manual, type(module)), {})
    module.automatic_optimization = False
    pure, manual = run(case, case.method), run(case, case.method, module=module)
    assert "one client at a time: Manual has automatic_optimization = False" in " ".join(manual.notes)
    for name, value in pure.state.items():
        assert torch.equal(manual.state[name], value), name
    assert manual.rows == pure.rows
