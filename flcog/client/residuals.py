"""Residuals: states of stages with an entry for each tensor of the envelope, whose structure is known after a client's first upload."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from flcog.method import Method, Stage


def residual_stages(methods: Sequence[Method]) -> list[int]:
    """The positions of the stages that keep residuals."""
    return [i for i, method in enumerate(methods) if isinstance(method, Stage) and method.keeps_residual]


def filled(residuals: Sequence[Mapping[str, Tensor]]) -> list[dict[str, Tensor]]:
    """Give the residuals of several clients the same entries, with zeros for missing entries, so that clients can be stacked.

    Clients without an upload so far have no entries, and the first uploads of a method add entries.

    >>> filled([{}, {"w": torch.tensor([1.0])}])
    [{'w': tensor([0.])}, {'w': tensor([1.])}]
    """
    known = {name: value for residual in residuals for name, value in residual.items()}
    zeros = {name: torch.zeros_like(known[name]) for name in sorted(known)}
    return [{**zeros, **residual} for residual in residuals]
