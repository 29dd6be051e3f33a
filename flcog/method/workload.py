"""Workload: a method that decides how many local steps each client takes."""

from dataclasses import dataclass

import torch

from flcog.method.client_view import ClientView
from flcog.method.method import Method


@dataclass(frozen=True, kw_only=True)
class Workload(Method, protocol=True):
    """Changes the clients' numbers of local steps, for slow devices, for example. If a run has several, each gets the earlier one's."""

    def plan(self, num_steps: int, client: ClientView, rng: torch.Generator) -> int | None:
        """The client's number of local steps in this round, or None if it drops out. *Chain; plain Python.*"""
        return num_steps
