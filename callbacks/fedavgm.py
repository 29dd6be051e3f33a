"""FedAvgM: momentum at the server, as in its paper, and as the programs of FedCOG and FedDisco compute it."""

from dataclasses import dataclass

import torch

from flcog.core.checks import positive, within
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

    beta: float = 0.9
    lr: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        within(self, "[0, 1)", "beta")
        positive(self, "lr")

    def init_server(self, params: Params) -> Slot:
        return {"velocity": {name: torch.zeros_like(value) for name, value in params.items()}}

    def server_step(self, server: Slot, params: Params, delta: Params, messages: Messages, cohort: Cohort) -> tuple[Params, Slot]:
        return momentum_step(server["velocity"], delta, self.beta, 1.0, self.lr)


@dataclass(frozen=True)
class FedAvgMInFedCOG(FedAvgM):
    """Gives the server momentum as the program of FedCOG does for its baseline: after round 1, the step is divided by 1 + beta.

    ::

        v <- beta v + D
        x <- x + lr v / (1 + beta)

    With a constant D the step grows to lr D / (1 - beta^2).

    Ye et al., Fake It Till Make It: Federated Learning with Consensus-Oriented Generation, ICLR 2024,
    https://arxiv.org/abs/2312.05966; https://github.com/rui-ye/FedCOG.

    Args:
        beta: momentum, in [0, 1); 0 is FedAvg.
        lr: the server's step size, > 0.

    Example:
        >>> FedAvgMInFedCOG(beta=0.1).lr
        1.0
    """

    def server_step(self, server: Slot, params: Params, delta: Params, messages: Messages, cohort: Cohort) -> tuple[Params, Slot]:
        lr = self.lr / (1 + self.beta) if cohort.round > self.start_round else self.lr
        return momentum_step(server["velocity"], delta, self.beta, 1.0, lr)


@dataclass(frozen=True)
class FedAvgMInFedDisco(FedAvgM):
    """Gives the server momentum as the program of FedDisco does for its baseline: the velocity is a running mean, not a sum.

    ::

        v <- beta v + (1 - beta) D
        x <- x + lr v

    With a constant D the step grows to lr D.

    Ye et al., FedDisco: Federated Learning with Discrepancy-Aware Collaboration, ICML 2023, https://arxiv.org/abs/2305.19229;
    https://github.com/MediaBrain-SJTU/FedDisco.

    Args:
        beta: momentum, in [0, 1); 0 is FedAvg.
        lr: the server's step size, > 0.

    Example:
        >>> FedAvgMInFedDisco(beta=0.5).lr
        1.0
    """

    def server_step(self, server: Slot, params: Params, delta: Params, messages: Messages, cohort: Cohort) -> tuple[Params, Slot]:
        return momentum_step(server["velocity"], delta, self.beta, 1 - self.beta, self.lr)
