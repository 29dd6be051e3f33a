"""EqualWeights, ClientDropout and Stragglers: how much clients count, whether they take part, and how far they train."""

from dataclasses import dataclass

import torch
from torch import Tensor

from flcog.core.checks import option
from flcog.method import ClientView, Cohort, Method, Workload


@dataclass(frozen=True)
class EqualWeights(Method):
    """Replaces the aggregation weights: every client of the cohort S counts equally, whatever its number of samples.

    ::

        p_k = 1 / |S|

    The analyses of SCAFFOLD and many others assume this; Karimireddy et al., 2020, https://arxiv.org/abs/1910.06378.

    Example:
        >>> EqualWeights().weights(torch.tensor([0.7, 0.3]), [], None)
        tensor([1., 1.])
    """

    def weights(self, weights: Tensor, messages: object, cohort: Cohort) -> Tensor:
        return torch.ones_like(weights)


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

    probability: float = option(0.1, "[0, 1)")

    def plan(self, num_steps: int, client: ClientView, rng: torch.Generator) -> int | None:
        return None if float(torch.rand((), generator=rng)) < self.probability else num_steps


@dataclass(frozen=True)
class Stragglers(Workload):
    """Replaces each client's number of local steps by a random one in every round, like slow and fast devices.

    ::

        K_k ~ uniform{min_steps, ..., max_steps}

    FedDisco (appendix B.7) draws 50 to 500 steps, in the setting of Wang et al., Tackling the Objective Inconsistency Problem
    in Heterogeneous Federated Optimization, NeurIPS 2020, https://arxiv.org/abs/2007.07481.

    Args:
        min_steps: smallest number of steps, >= 1.
        max_steps: largest number of steps, >= min_steps.

    Example:
        >>> Stragglers(min_steps=3, max_steps=3).plan(10, None, torch.Generator())
        3
    """

    min_steps: int = option(50, ">= 1")
    max_steps: int = option(500, ">= 1")

    def plan(self, num_steps: int, client: ClientView, rng: torch.Generator) -> int:
        return int(torch.randint(self.min_steps, self.max_steps + 1, (), generator=rng))
