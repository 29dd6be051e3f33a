"""Types that all packages share: named tensors, a method's state, a batch of samples."""

from typing import Any, NamedTuple

from torch import Tensor

from flcog.core.trees import Tree

Params = dict[str, Tensor]
"""Named parameters (or gradients, deltas, control variates, ... shaped like them)."""

Slot = Any
"""A pytree (dict, list or tuple) of tensors that belongs to one method."""


class Batch(NamedTuple):
    """The samples of one local step. ``mask`` is None if every row counts, else [B] with 0 for padding under vmap."""

    inputs: Tree
    targets: Tree
    mask: Tensor | None = None
