"""Methods of one equation: their papers, neutral settings and refused arguments, which the contracts test, and a few closed forms."""

import itertools
from functools import partial
from typing import Any

import pytest
import torch
from contracts.case import Case
from harness import MOMENTUM, RAGGED, classifier, distance, train
from reference import clip_gradient, fedavg, fedavgm, fednova, fedopt, fedprox, scaffold

from flcog.callbacks import (
    SCAFFOLD,
    ClientDropout,
    ClipGradient,
    EqualWeights,
    FedAdagrad,
    FedAdam,
    FedAvgM,
    FedAvgMInFedCOG,
    FedAvgMInFedDisco,
    FedNova,
    FedNovaInFedDisco,
    FedProx,
    FedYogi,
    SCAFFOLDInFedDisco,
    Stragglers,
)

ALMOST_ONE = 1 - 2**-53

CASES: dict[str, Case] = {
    "FedProx": Case(FedProx(mu=0.5), partial(fedprox.run, mu=0.5), neutral=FedProx(mu=0.0)),
    "FedAvgM": Case(FedAvgM(beta=0.6, lr=0.8), partial(fedavgm.run, beta=0.6, lr=0.8), neutral=FedAvgM(beta=0.0)),
    "FedAvgM-fedcog": Case(
        FedAvgMInFedCOG(beta=0.6),
        partial(fedavgm.run, beta=0.6, form="fedcog"),
        neutral=FedAvgMInFedCOG(beta=0.0),
    ),
    "FedAvgM-feddisco": Case(
        FedAvgMInFedDisco(beta=0.6),
        partial(fedavgm.run, beta=0.6, form="feddisco"),
        neutral=FedAvgMInFedDisco(beta=0.0),
    ),
    # In the neutral settings the scale stays at tau, so a learning rate of 2 tau gives the step of FedAvg.
    "FedAdagrad": Case(
        FedAdagrad(lr=0.05, beta1=0.3, tau=0.01),
        partial(fedopt.run, form="adagrad", lr=0.05, beta1=0.3, tau=0.01),
        neutral=FedAdagrad(lr=2e9, beta1=0.0, tau=1e9),
    ),
    "FedAdam": Case(
        FedAdam(lr=0.02, beta1=0.8, beta2=0.9, tau=0.01),
        partial(fedopt.run, form="adam", lr=0.02, beta1=0.8, beta2=0.9, tau=0.01),
        neutral=FedAdam(lr=2.0, beta1=0.0, beta2=ALMOST_ONE, tau=1.0),
    ),
    "FedYogi": Case(
        FedYogi(lr=0.02, beta1=0.8, beta2=0.9, tau=0.1),
        partial(fedopt.run, form="yogi", lr=0.02, beta1=0.8, beta2=0.9, tau=0.1),
        neutral=FedYogi(lr=2.0, beta1=0.0, beta2=ALMOST_ONE, tau=1.0),
    ),
    "SCAFFOLD": Case(SCAFFOLD(), scaffold.run),
    "SCAFFOLD-momentum": Case(
        SCAFFOLD(server_lr=0.7), partial(scaffold.run, server_lr=0.7, momentum=0.9), optimizer=MOMENTUM, options=RAGGED
    ),
    "SCAFFOLD-feddisco": Case(SCAFFOLDInFedDisco(), scaffold.run_feddisco, optimizer=MOMENTUM, options=RAGGED),
    "ClipGradient": Case(
        ClipGradient(max_norm=0.3), partial(clip_gradient.run, max_norm=0.3), neutral=ClipGradient(max_norm=1e9)
    ),
    "EqualWeights": Case(EqualWeights(), partial(fedavg.run, uniform=True)),
    "ClientDropout": Case(ClientDropout(probability=0.4), fedavg.run, neutral=ClientDropout(probability=0.0), random=True),
    "Stragglers": Case(
        Stragglers(min_steps=1, max_steps=6), fedavg.run, neutral=Stragglers(min_steps=4, max_steps=4), random=True
    ),
    "FedNova": Case(FedNova(), fednova.run, options=RAGGED),
    "FedNova-momentum": Case(FedNova(), partial(fednova.run, momentum=0.9), optimizer=MOMENTUM, options=RAGGED),
    "FedNova-feddisco": Case(
        FedNovaInFedDisco(batch_size=4),
        partial(fednova.run_feddisco, batch_size=4),
        optimizer=MOMENTUM,
        options=RAGGED,
    ),
}


@pytest.mark.slow
def test_clients_drop_out_at_the_rate_asked_for() -> None:
    trainer = train(ClientDropout(probability=0.3), clients_per_round=8, rounds=50, local_steps=1)
    share = sum(map(len, trainer.recorded)) / 400
    assert abs(share - 0.7) < 3 * (0.3 * 0.7 / 400) ** 0.5
    with pytest.warns(UserWarning, match="round 1: every sampled client dropped out"):
        nobody = train(ClientDropout(probability=1 - 1e-9), rounds=1)
    assert distance(nobody.params, {name: value.detach().double() for name, value in classifier().named_parameters()}) == 0


def test_stragglers_do_what_they_can() -> None:
    trainer = train(Stragglers(min_steps=2, max_steps=5), clients_per_round=8, rounds=8)
    steps = [[len(client.batches) for client in round] for round in trainer.recorded]
    assert set(itertools.chain(*steps)) == {2, 3, 4, 5}
    assert len({tuple(round) for round in steps}) == 8


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
    settings = train(module=classifier(optimizer), rounds=1).run.engine.local_optimiser(0)[1]
    weight = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    torch_sgd = optimizer([weight])
    for step in range(1, 8):
        weight.grad = torch.ones_like(weight)
        torch_sgd.step()
        assert float(settings.effective_steps(step)) == pytest.approx(-weight.item(), rel=1e-12)
