"""Whether a network mixes the rows of a batch by itself, without a layer such as BatchNorm that says so."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from flcog.core.global_streams import kept_streams, put_back
from flcog.core.trees import Tree, first_leaf, map_leaves
from flcog.model_function import ModelFunction, forward


@torch.no_grad()
def reads_other_rows(model: ModelFunction, sample: Tree) -> bool:
    """Whether the output of a row changes in training if another row changes, as in ``x - x.mean(0)``.

    A network that fails on two rows is not judged: the error comes again, with its client and step, when a client trains.

    Args:
        model: the client's model.
        sample: one input, [1, ...].
    """
    device = first_leaf(sample).device
    found = []
    with kept_streams(device) as before:
        for other in (torch.clone, torch.zeros_like):
            put_back(before, device)  # for the same dropout
            buffers = {name: buffer.clone() for name, buffer in model.buffers.items()}
            rows = map_leaves(partial(_beside, other), sample)
            try:
                outputs = model.training(model.params, buffers, forward, rows)
            except Exception:
                return False
            found.append([leaf[0].clone() for leaf in pytree.tree_leaves(outputs) if _has_rows(leaf)])
    return any(map(_differs, *found))


def _beside(other: Callable[[Tensor], Tensor], row: Tensor) -> Tensor:
    """The row, and another one that is made of it."""
    return torch.cat([row, other(row)])


def _has_rows(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and leaf.ndim > 0 and len(leaf) == 2 and leaf.numel() > 0


def _differs(one: Tensor, other: Tensor) -> bool:
    """Whether two outputs differ by more than the rounding of another kernel."""
    if not one.is_floating_point():
        return not torch.equal(one, other)
    return float((one - other).abs().max()) > torch.finfo(one.dtype).eps ** 0.5 * float(one.abs().max())
