"""What a method's file under ``tests/methods`` registers: its cases, and the arguments that it refuses."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from harness import SGD, TinyData, classifier
from reference.common import Problem, State

import flcog
from flcog.method import Method


@dataclass(frozen=True)
class Case:
    """One setting of one method.

    Args:
        method: the setting under test; it must change what FedAvg does.
        reference: the paper in plain torch, given the same hyper-parameters; None where no whole run can be compared.
        neutral: a setting with which the method is FedAvg, if it has one.
        optimizer: the local optimiser of the comparison.
        module: makes the client module from the optimiser.
        data: makes the data.
        options: further arguments of the trainer.
        like_fedavg: whether its global model is FedAvg's, because what it changes is the clients' own.
        no_reference: why no whole run can be compared, where the method's file compares piece by piece.
        random: whether it draws randomness of its own, so that clients with equal data differ.
        rtol: tolerance against the reference in float64.
        beside: methods that always run beside it, before it in the list.
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


Refusals = dict[type, list[tuple[dict[str, Any], str]]]
"""Of each class: arguments, and what the error says of them after the class's name."""
