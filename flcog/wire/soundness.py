"""Checks that clients run on their state, and the server on envelopes: values that are NaN or infinite."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

STATE_RANGE = "state/"
"""Names of the measurements by which clients tell whether their states are finite; the method's name follows."""


def state_ranges(states: Sequence[Any], methods: Sequence[str], count: int) -> dict[str, Tensor]:
    """For each method with a state, zeros if all values of a client's state are finite, and else NaN. They tell nothing else of the state.

    The server reads them together with the envelope, so that nobody waits for an accelerator here.
    """
    found = {}
    for name, state in zip(methods, states, strict=True):
        rows = [value.reshape(count, -1) for value in floats(state) if value.numel()]
        # On a CPU, aminmax and norms take ten times as long.
        ends = [end for each in rows for end in (each.amax(1), each.amin(1))]
        if ends:
            found[STATE_RANGE + name] = 0 * torch.stack([end.to(ends[0]) for end in ends], 1)
    return found


def suspects(tree: Any, count: int) -> Tensor:
    """Clients whose values may not all be finite, [clients]. Their sums show it, in one pass without temporary tensors.

    A sum of finite values can overflow: :func:`is_sound` decides.
    """
    sums = [value.reshape(count, -1).sum(1) for value in floats(tree)]
    if not sums:
        return torch.zeros(count, dtype=torch.bool)
    return ~torch.isfinite(torch.stack([each.to(sums[0]) for each in sums])).all(0)


def is_sound(tree: Any, k: int) -> bool:
    """Whether all values of one client are finite."""
    return all(bool(torch.isfinite(value[k]).all()) for value in floats(tree))


def floats(tree: Any) -> list[Tensor]:
    return [value for value in pytree.tree_leaves(tree) if isinstance(value, Tensor) and value.is_floating_point()]


def of_client(tree: Any, k: int) -> Any:
    """One client's part of a tree with a leading client axis, in memory of its own, so that it does not hold the others'."""
    return pytree.tree_map(lambda value: value[k].clone() if len(value) > 1 else value[k], tree)
