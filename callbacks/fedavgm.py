"""FedAvgM: momentum at the server."""

from dataclasses import dataclass

import torch

from flcog.core.checks import option
from flcog.core.types import Params, Slot
from flcog.method import Cohort, Messages, Method


def momentum_step(velocity: Params, delta: Params, beta: float, gain: float, lr: float) -> tuple[Params, Slot]:
    """The server's step ``lr v`` along the velocity ``v <- beta v + gain delta``, and the server's new state.

    >>> momentum_step({"w": torch.tensor(2.0)}, {"w": torch.tensor(1.0)}, beta=0.5, gain=1.0, lr=0.1)[1]
    {'velocity': {'w': tensor(2.)}}
    """
    velocity = {name: beta * value + gain * delta[name] for name, value in velocity.items()}
    return {name: lr * value for name, value in velocity.items()}, {"velocity": velocity}


@dataclass(frozen=True)
class FedAvgM(Method):
    """Gives the server momentum: it steps along a running sum of the rounds' mean updates.

    With D the clients' mean update of the round and velocity v, which starts at 0::

        v <- beta v + D
        x <- x + lr v

    With a constant D the step grows to lr D / (1 - beta).

    Hsu et al., Measuring the Effects of Non-Identical Data Distribution for Federated Visual Classification, 2019,
    https://arxiv.org/abs/1909.06335.

    Args:
        beta: momentum, in [0, 1); 0 is FedAvg.
        lr: the server's step size, > 0.

    Example:
        >>> FedAvgM(beta=0.5).init_server({"w": torch.ones(2)})
        {'velocity': {'w': tensor([0., 0.])}}
    """

    beta: float = option(0.9, "[0, 1)")
    lr: float = option(1.0, "> 0")

    def init_server(self, params: Params) -> Slot:
        return {"velocity": {name: torch.zeros_like(value) for name, value in params.items()}}

    def server_step(self, server: Slot, params: Params, delta: Params, messages: Messages, cohort: Cohort) -> tuple[Params, Slot]:
        return momentum_step(server["velocity"], delta, self.beta, 1.0, self.lr)
