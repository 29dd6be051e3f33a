"""The registry of methods: one :class:`Case` per method (or per form of it) puts it through every test of ``test_methods.py``.

To add a method: write ``tests/reference/<method>.py`` with ``run(problem, **hyper_parameters) -> state_dict``, and add one entry below.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import torch
from harness import SGD, TinyData, classifier
from reference import fedavgm, fedprox, scaffold
from reference.common import Problem, State

import flcog
from flcog.callbacks import SCAFFOLD, FedAvgM, FedProx
from flcog.hooks import Method

MOMENTUM = partial(torch.optim.SGD, lr=0.05, momentum=0.9, weight_decay=1e-3)


@dataclass(frozen=True)
class Case:
    """One setting of one method.

    Args:
        method: the setting under test; it must change what FedAvg does, unless ``like_fedavg`` says why it need not.
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


CASES: dict[str, Case] = {
    "FedProx": Case(FedProx(mu=0.5), partial(fedprox.run, mu=0.5), neutral=FedProx(mu=0.0)),
    "SCAFFOLD": Case(SCAFFOLD(), scaffold.run),
    "SCAFFOLD-momentum": Case(
        SCAFFOLD(server_lr=0.7),
        partial(scaffold.run, server_lr=0.7, momentum=0.9),
        optimizer=MOMENTUM,
        options={"local_epochs": 2},
    ),
    "FedAvgM": Case(FedAvgM(beta=0.6, lr=0.8), partial(fedavgm.run, beta=0.6, lr=0.8), neutral=FedAvgM(beta=0.0)),
    "FedAvgM-fedcog": Case(
        FedAvgM(beta=0.6, form="fedcog"), partial(fedavgm.run, beta=0.6, form="fedcog"), neutral=FedAvgM(beta=0.0, form="fedcog")
    ),
    "FedAvgM-feddisco": Case(
        FedAvgM(beta=0.6, form="feddisco"),
        partial(fedavgm.run, beta=0.6, form="feddisco"),
        neutral=FedAvgM(beta=0.0, form="feddisco"),
    ),
}

NO_REFERENCE: dict[str, str] = {}
"""Methods without a reference, and why."""
