"""The type with which a file under ``tests/methods`` registers its cases."""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from harness import SGD, TinyData, classifier
from reference.common import Problem, State

import flcog
from flcog.method import Method


@dataclass(frozen=True)
class Case:
    """One setting of one method.

    Args:
        method: the setting under test. Its run must differ from FedAvg's.
        reference: the paper's algorithm in plain torch, with the same hyper-parameters; None if no whole run can be compared.
        neutral: a setting that makes the method equal to FedAvg, if there is one.
        optimizer: the clients' optimiser in the comparison.
        module: a function that makes the client module from the optimiser.
        data: a function that makes the data.
        options: further arguments of the trainer.
        like_fedavg: whether the method leaves the global model as FedAvg trains it, because it changes only the clients' own values.
        no_reference: why no whole run can be compared; the method's file then compares single computations.
        random: whether the method draws random numbers of its own, so that clients with equal data differ.
        rtol: tolerance against the reference in float64.
        beside: methods that run together with this method in every test, listed before it.
    """

    method: Method
    reference: Callable[[Problem], State] | None
    neutral: Method | None = None
    optimizer: Callable[..., torch.optim.Optimizer] = SGD
    module: Callable[..., flcog.ClientModule] = classifier
    data: Callable[[], flcog.FederatedDataModule] = TinyData
    options: dict[str, object] = field(default_factory=dict)
    like_fedavg: bool = False
    no_reference: str = ""
    random: bool = False
    rtol: float = 1e-9
    beside: tuple[Method, ...] = ()
