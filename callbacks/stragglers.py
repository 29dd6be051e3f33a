"""Stragglers: every client takes a random number of local steps, like slow and fast devices."""

from dataclasses import dataclass

import torch

from flcog.method import ClientView, Workload


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

    min_steps: int = 50
    max_steps: int = 500

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.min_steps <= self.max_steps:
            raise ValueError(f"Stragglers: need 1 <= min_steps <= max_steps; got {self.min_steps} and {self.max_steps}")

    def plan(self, num_steps: int, client: ClientView, rng: torch.Generator) -> int:
        return int(torch.randint(self.min_steps, self.max_steps + 1, (), generator=rng))
