"""The registry of methods: one :class:`Case` per method (or per form of it) puts it through every test of ``test_methods.py``.

To add a method: write ``tests/reference/<method>.py`` with ``run(problem, **hyper_parameters) -> state_dict``, and add one entry to
the ``CASES`` below, or of a file ``methods/cases_<anything>.py``.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import torch
from harness import SGD, TINY_LABELS, TinyData, classifier
from reference import clip_gradient, fedavg, fedavgm, feddisco, feddyn, fednova, fedopt, fedprox, fedsam, scaffold
from reference.common import Problem, State

import flcog
from flcog.callbacks import (
    SCAFFOLD,
    ClientDropout,
    ClipGradient,
    EqualWeights,
    FedAdagrad,
    FedAdam,
    FedAvgM,
    FedDisco,
    FedDyn,
    FedNova,
    FedProx,
    FedSAM,
    FedYogi,
    Stragglers,
)
from flcog.hooks import Method

MOMENTUM = partial(torch.optim.SGD, lr=0.05, momentum=0.9, weight_decay=1e-3)


@dataclass(frozen=True)
class Case:
    """One setting of one method.

    Args:
        method: the setting under test; it must change what FedAvg does.
        reference: the paper in plain torch, given the same hyper-parameters; None only for methods in ``NO_REFERENCE``.
        neutral: a setting with which the method is FedAvg, if it has one.
        optimizer: the local optimiser of the comparison.
        module: makes the client module from the optimiser.
        data: makes the data.
        options: further arguments of the trainer.
        random: whether it draws randomness of its own, so that clients with equal data differ.
        rtol: tolerance against the reference in float64.
    """

    method: Method
    reference: Callable[[Problem], State] | None
    neutral: Method | None = None
    optimizer: Callable[..., torch.optim.Optimizer] = SGD
    module: Callable[..., flcog.ClientModule] = classifier
    data: Callable[[], flcog.FederatedDataModule] = TinyData
    options: dict[str, object] = field(default_factory=dict)
    random: bool = False
    rtol: float = 1e-9


RAGGED = {"local_epochs": 2}
"""Clients with different numbers of steps."""

ALMOST_ONE = 1 - 2**-53

CASES: dict[str, Case] = {
    "FedProx": Case(FedProx(mu=0.5), partial(fedprox.run, mu=0.5), neutral=FedProx(mu=0.0)),
    "SCAFFOLD": Case(SCAFFOLD(), scaffold.run),
    "SCAFFOLD-momentum": Case(
        SCAFFOLD(server_lr=0.7), partial(scaffold.run, server_lr=0.7, momentum=0.9), optimizer=MOMENTUM, options=RAGGED
    ),
    "FedAvgM": Case(FedAvgM(beta=0.6, lr=0.8), partial(fedavgm.run, beta=0.6, lr=0.8), neutral=FedAvgM(beta=0.0)),
    "FedAvgM-fedcog": Case(
        FedAvgM(beta=0.6, form="fedcog"),
        partial(fedavgm.run, beta=0.6, form="fedcog"),
        neutral=FedAvgM(beta=0.0, form="fedcog"),
    ),
    "FedAvgM-feddisco": Case(
        FedAvgM(beta=0.6, form="feddisco"),
        partial(fedavgm.run, beta=0.6, form="feddisco"),
        neutral=FedAvgM(beta=0.0, form="feddisco"),
    ),
    # Where the scale never leaves tau, twice tau is the step size of FedAvg.
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
    "FedNova": Case(FedNova(), fednova.run, options=RAGGED),
    "FedNova-momentum": Case(FedNova(), partial(fednova.run, momentum=0.9), optimizer=MOMENTUM, options=RAGGED),
    "FedDisco": Case(FedDisco(), partial(feddisco.run, a=0.5, b=0.1, target=[1, 1, 1]), neutral=FedDisco(a=0.0, b=0.0)),
    "FedDisco-l1": Case(
        FedDisco(a=0.2, b=0.0, metric="l1", target="global"),
        partial(feddisco.run, a=0.2, b=0.0, metric="l1", target=TINY_LABELS),
        neutral=FedDisco(a=0.0, b=0.0, metric="l1", target="global"),
    ),
    "FedDisco-l2": Case(
        FedDisco(a=0.2, metric="l2", target=[0.2, 0.3, 0.5]),
        partial(feddisco.run, a=0.2, b=0.1, metric="l2", target=[0.2, 0.3, 0.5]),
    ),
    "FedDisco-cosine": Case(
        FedDisco(a=0.4, metric="cosine"), partial(feddisco.run, a=0.4, b=0.1, metric="cosine", target=[1, 1, 1])
    ),
    "FedSAM": Case(FedSAM(rho=0.3), partial(fedsam.run, rho=0.3), neutral=FedSAM(rho=0.0)),
    "FedSAM-adaptive": Case(
        FedSAM(rho=0.7, adaptive=True, eta=0.2),
        partial(fedsam.run, rho=0.7, adaptive=True, eta=0.2),
        neutral=FedSAM(rho=0.0, adaptive=True),
        optimizer=MOMENTUM,
    ),
    "FedDyn": Case(FedDyn(alpha=0.1), partial(feddyn.run, alpha=0.1)),
    "EqualWeights": Case(EqualWeights(), partial(fedavg.run, uniform=True)),
    "ClipGradient": Case(
        ClipGradient(max_norm=0.3), partial(clip_gradient.run, max_norm=0.3), neutral=ClipGradient(max_norm=1e9)
    ),
    "Stragglers": Case(
        Stragglers(min_steps=1, max_steps=6), fedavg.run, neutral=Stragglers(min_steps=4, max_steps=4), random=True
    ),
    "ClientDropout": Case(ClientDropout(probability=0.4), fedavg.run, neutral=ClientDropout(probability=0.0), random=True),
}

LIKE_FEDAVG: dict[str, Case] = {}
"""Cases of methods whose global model is FedAvg's, because what they change is the clients' own."""

NO_REFERENCE: dict[str, str] = {}
"""Methods of which no whole run can be compared with the paper in plain torch, and why."""
