"""FedAvgM: momentum on the server."""

from dataclasses import dataclass
from typing import Literal

import torch

from flcog.core.checks import one_of, positive, within
from flcog.core.types import Params, Slot
from flcog.method import Cohort, Messages, Method


@dataclass(frozen=True)
class FedAvgM(Method):
    """Gives the server momentum: it steps along a running sum of the rounds' mean updates.

    With D the clients' mean update of the round and velocity v, which starts at 0::

        standard:  v <- beta v + D               x <- x + lr v
        fedcog:    v <- beta v + D               x <- x + lr v / (1 + beta), undivided in the first round
        feddisco:  v <- beta v + (1 - beta) D    x <- x + lr v

    ``standard`` is the paper's. The others are what the baselines of FedCOG and FedDisco run in their authors' code; the same beta
    means a step of up to D / (1 - beta), D / (1 - beta^2) and D.

    Hsu et al., Measuring the Effects of Non-Identical Data Distribution for Federated Visual Classification, 2019,
    https://arxiv.org/abs/1909.06335; https://github.com/rui-ye/FedCOG; https://github.com/MediaBrain-SJTU/FedDisco.

    Args:
        beta: momentum, in [0, 1); 0 is FedAvg.
        form: which of the three.
        lr: the server's step size, > 0.

    Example:
        >>> FedAvgM(beta=0.5, form="feddisco").form
        'feddisco'
    """

    beta: float = 0.9
    form: Literal["standard", "fedcog", "feddisco"] = "standard"
    lr: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        within(self, "[0, 1)", "beta")
        positive(self, "lr")
        one_of(self, ("standard", "fedcog", "feddisco"), "form")

    def init_server(self, params: Params) -> Slot:
        return {"velocity": {name: torch.zeros_like(value) for name, value in params.items()}}

    def server_step(self, server: Slot, params: Params, delta: Params, messages: Messages, cohort: Cohort) -> tuple[Params, Slot]:
        gain = 1 - self.beta if self.form == "feddisco" else 1.0
        velocity = {name: self.beta * value + gain * delta[name] for name, value in server["velocity"].items()}
        damped = self.form == "fedcog" and cohort.round > self.start_round
        step = self.lr / (1 + self.beta) if damped else self.lr
        return {name: step * value for name, value in velocity.items()}, {"velocity": velocity}
