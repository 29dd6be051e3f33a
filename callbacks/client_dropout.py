"""ClientDropout: removes sampled clients from a round at random, before they have sent anything."""

from dataclasses import dataclass

import torch

from flcog.core.checks import within
from flcog.method import ClientView, Workload


@dataclass(frozen=True)
class ClientDropout(Workload):
    """Removes each sampled client from the round with a fixed probability, before it has sent or changed anything.

    ::

        S <- {k in S : u_k >= probability},   u_k ~ uniform[0, 1)

    A round without any remaining client does not change the model. Bonawitz et al., Towards Federated Learning at Scale: System
    Design, MLSys 2019, https://arxiv.org/abs/1902.01046, report drop-out rates of 6 to 10 %.

    Args:
        probability: probability that a client drops out of a round, in [0, 1).

    Example:
        >>> ClientDropout(probability=0.0).plan(10, None, torch.Generator())
        10
    """

    probability: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        within(self, "[0, 1)", "probability")

    def plan(self, num_steps: int, client: ClientView, rng: torch.Generator) -> int | None:
        return None if float(torch.rand((), generator=rng)) < self.probability else num_steps
