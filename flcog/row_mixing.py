"""Whether a network mixes the rows of a batch by itself, without a layer such as BatchNorm that says so."""

from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from flcog.core.trees import Tree, first_leaf, map_leaves
from flcog.model_function import ModelFunction, forward


@torch.no_grad()
def reads_other_rows(model: ModelFunction, sample: Tree) -> bool:
    """Whether a row's output or a buffer changes in training if other rows change, as in ``x - x.mean(0)`` or a mean over batches.

    A network that fails on two rows is not judged: the error comes again, with its client and step, when a client trains.

    Args:
        model: the client's model.
        sample: one input, [1, ...].
    """
    try:
        found = [_trained(model, map_leaves(rows, sample)) for rows in (_twice, _beside_zeros, _beside_more_zeros)]
    except Exception:
        return False
    (outputs, buffers), (other_outputs, other_buffers), (_, more_buffers) = found
    # Dropout's draws for a row may depend on the number of rows, so that outputs are compared among equal numbers.
    same_number = zip(outputs + buffers, other_outputs + other_buffers, strict=True)
    return any(_differs(one, other) for one, other in [*same_number, *zip(other_buffers, more_buffers, strict=True)])


def _trained(model: ModelFunction, rows: Tree) -> tuple[list[Tensor], list[Tensor]]:
    """The outputs of the first row and the buffers after a forward pass in training, always with the same random numbers."""
    buffers = {name: buffer.clone() for name, buffer in model.buffers.items()}
    with model.on_trial():
        outputs = pytree.tree_leaves(model.training(model.params, buffers, forward, rows))
    count = len(first_leaf(rows))
    return [leaf[0] for leaf in outputs if _has_rows(leaf, count)], list(buffers.values())


def _twice(row: Tensor) -> Tensor:
    return torch.cat([row, row])


def _beside_zeros(row: Tensor) -> Tensor:
    return torch.cat([row, torch.zeros_like(row)])


def _beside_more_zeros(row: Tensor) -> Tensor:
    return torch.cat([row, torch.zeros_like(row), torch.zeros_like(row)])


def _has_rows(leaf: Any, count: int) -> bool:
    return isinstance(leaf, Tensor) and leaf.ndim > 0 and len(leaf) == count and leaf.numel() > 0


def _differs(one: Tensor, other: Tensor) -> bool:
    """Whether two outputs or buffers differ by more than the rounding of another kernel."""
    if one.shape != other.shape or one.numel() == 0:
        return one.shape != other.shape
    if not one.is_floating_point():
        return not torch.equal(one, other)
    return float((one - other).abs().max()) > torch.finfo(one.dtype).eps ** 0.5 * float(one.abs().max())
