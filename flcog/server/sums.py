"""Sums over the clients of a round."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from flcog.core.precision import number_dtype
from flcog.core.sums import weighted_sum
from flcog.core.types import Params


class Sums(NamedTuple):
    """Sums over the clients of a round, each in the shape of one client's value.

    Args:
        delta, buffers: the changes of the parameters and of the shared buffers, times the clients' weights.
        means: the messages times the clients' weights, by method.
        totals: the messages without weights, by method.
        directions: the changes of the model divided by their norms.
        weight: the clients' weights.
        loss: the task losses times the clients' weights.
        clients: the number of clients.
        norm: the norms of the changes.
    """

    delta: Params
    buffers: Params
    means: Mapping[str, Any]
    totals: Mapping[str, Any]
    directions: Params
    weight: Tensor
    loss: Tensor
    clients: Tensor
    norm: Tensor


def add_terms(totals: Any, terms: Any, factors: Tensor | None) -> None:
    """Add each client's terms, times its factor, to the sums."""
    values = pytree.tree_leaves(terms)
    # Read the value once, because reading waits for the accelerator.
    alone = float(factors[0]) if factors is not None and any(len(value) == 1 for value in values) else 1.0
    for total, value in zip(pytree.tree_leaves(totals), values, strict=True):
        if len(value) == 1:
            total.add_(value[0], alpha=alone)
        elif factors is None:
            total.add_(value.sum(0, dtype=torch.float64))
        else:
            # Weights are shares: as integers they would be 0, and as bfloat16 they would have errors of 0.4%.
            value = value.to(number_dtype(value.dtype)) if value.is_floating_point() else value.double()
            total.add_(weighted_sum(factors.to(value.dtype), value))


def dtype_of_mean(value: Tensor) -> torch.dtype:
    """The dtype of a mean or a sum of such values: the run's precision, or the values' if higher; for integers at least float32."""
    return torch.promote_types(value.dtype, torch.get_default_dtype()) if value.is_floating_point() else number_dtype()


def norms_of(delta: Params, num_clients: int) -> Tensor:
    if num_clients == 1:
        return torch.stack(torch._foreach_norm(list(delta.values()))).norm().unsqueeze(0)
    return torch.stack([torch.linalg.vector_norm(v.view(num_clients, -1), dim=1) for v in delta.values()]).norm(dim=0)
