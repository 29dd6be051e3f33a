"""The types that are passed around everywhere: named tensors, a method's state, a batch of samples."""

from typing import Any, NamedTuple

from torch import Tensor

from flcog.core.trees import Tree

Params = dict[str, Tensor]
"""Named parameters (or gradients, deltas, control variates, ... shaped like them)."""

Slot = Any
"""A pytree (dict, list or tuple) of tensors that belongs to one method."""


class Batch(NamedTuple):
    """One local step's samples. ``mask`` is None where every row counts, else [B] with 0 for padding (unequal clients under vmap)."""

    inputs: Tree
    targets: Tree
    mask: Tensor | None = None
