"""FedNova against its paper, with and without momentum, and in the form of FedDisco's code."""

from functools import partial
from typing import Any

import pytest
import torch
from contracts.case import Case, Refusals
from harness import MOMENTUM, RAGGED, classifier, train
from reference import fednova

from flcog.callbacks import FedNova, FedNovaInFedDisco

CASES: dict[str, Case] = {
    "FedNova": Case(FedNova(), fednova.run, options=RAGGED),
    "FedNova-momentum": Case(FedNova(), partial(fednova.run, momentum=0.9), optimizer=MOMENTUM, options=RAGGED),
    "FedNova-feddisco": Case(
        FedNovaInFedDisco(batch_size=4),
        partial(fednova.run_feddisco, batch_size=4),
        optimizer=MOMENTUM,
        options=RAGGED,
    ),
}


REFUSED: Refusals = {
    FedNovaInFedDisco: [
        ({"batch_size": 0}, "batch_size must be at least 1; got 0"),
    ],
}


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"momentum": 0.9},
        {"momentum": 0.9, "nesterov": True},
        {"momentum": 0.9, "dampening": 0.9},
        {"momentum": 0.5, "dampening": 0.25},
        {"dampening": 0.5},  # without momentum torch ignores it
    ],
    ids=str,
)
def test_effective_steps_are_the_way_along_a_constant_gradient(options: dict[str, Any]) -> None:
    optimizer = partial(torch.optim.SGD, lr=1.0, **options)
    settings = train(module=classifier(optimizer), rounds=1).run.engine.optimisation(0)
    weight = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    torch_sgd = optimizer([weight])
    for step in range(1, 8):
        weight.grad = torch.ones_like(weight)
        torch_sgd.step()
        assert float(settings.effective_steps(step)) == pytest.approx(-weight.item(), rel=1e-12)
