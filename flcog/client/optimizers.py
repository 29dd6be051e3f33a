"""A module's optimisers: several as one, and their description."""

import inspect
from collections.abc import Sequence
from typing import Any

import torch


class SeveralOptimizers(torch.optim.Optimizer):
    """The optimisers of a module with manual optimisation as one list of groups. The module steps each of them."""

    def __init__(self, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        self.optimizers = list(optimizers)
        self.defaults: dict[str, Any] = {}

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        return [group for optimizer in self.optimizers for group in optimizer.param_groups]

    def __repr__(self) -> str:
        return f"SeveralOptimizers({', '.join(map(repr, self.optimizers))})"


def asks_again(optimizer: torch.optim.Optimizer) -> bool:
    """Whether the optimiser computes the loss itself, perhaps several times in a step, as ``LBFGS`` does."""
    closure = inspect.signature(type(optimizer).step).parameters.get("closure")
    return closure is not None and closure.default is inspect.Parameter.empty


def describe_optimizer(optimizer: torch.optim.Optimizer) -> str:
    """Describe an optimiser by its settings that differ from torch's defaults: ``SGD(lr=0.05, momentum=0.9)``."""
    if isinstance(optimizer, SeveralOptimizers):
        return ", ".join(map(describe_optimizer, optimizer.optimizers))
    usual = inspect.signature(type(optimizer)).parameters
    options = {
        name: value
        for name, value in optimizer.defaults.items()
        if name == "lr" or (name in usual and usual[name].default != value)
    }
    groups = f", {len(optimizer.param_groups)} groups of parameters" if len(optimizer.param_groups) > 1 else ""
    return f"{type(optimizer).__name__}({', '.join(f'{name}={value}' for name, value in options.items())}){groups}"
