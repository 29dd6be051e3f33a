"""The method that the program of FedCOG compares with in a form of its own.

Ye et al., Fake It Till Make It: Federated Learning with Consensus-Oriented Generation, ICLR 2024, https://arxiv.org/abs/2312.05966;
https://github.com/rui-ye/FedCOG.
"""

from dataclasses import dataclass

from flcog.callbacks.fedavgm import FedAvgM, momentum_step
from flcog.core.types import Params, Slot
from flcog.method import Cohort, Messages


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
    """

    def server_step(self, server: Slot, params: Params, delta: Params, messages: Messages, cohort: Cohort) -> tuple[Params, Slot]:
        lr = self.lr / (1 + self.beta) if cohort.round > self.start_round else self.lr
        return momentum_step(server["velocity"], delta, self.beta, 1.0, lr)
