"""Whether a network mixes the rows of a batch by itself, without a layer such as BatchNorm that says so."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from flcog.core.trees import Tree, first_leaf, map_leaves
from flcog.model_function import ModelFunction, forward


@torch.no_grad()
def reads_other_rows(model: ModelFunction, sample: Tree) -> bool:
    """Whether a row's output or a buffer changes in training if other rows change, as in ``x - x.mean(0)`` or a mean over batches.

    The second trial moves the weights a little: other rows may come in through a gate that begins at 0.
    A network that fails on two rows is not judged: the error comes again, with its client and step, when a client trains.

    Args:
        model: the client's model.
        sample: one input, [1, ...].
    """
    try:
        return any(_Trial(model, sample, moved).differs() for moved in (False, True))
    except Exception:
        return False


class _Trial(NamedTuple):
    """Forward passes in training over a sample and other rows, always with the same random numbers.

    Args:
        model: the client's model, which stays as it is.
        sample: one input, [1, ...].
        moved: whether to move the weights a little.
    """

    model: ModelFunction
    sample: Tree
    moved: bool

    def differs(self) -> bool:
        """Whether the outputs of the first row or the buffers depend on the other rows."""
        (outputs, buffers), (other_outputs, other_buffers) = self._trained(_twice), self._trained(_beside_zeros)
        # Dropout's draws for a row may depend on the number of rows, so that outputs are compared among equal numbers.
        pairs = list(zip(outputs + buffers, other_outputs + other_buffers, strict=True))
        if not self.moved:  # no gate hides the number of rows from a buffer
            pairs += zip(other_buffers, self._trained(_beside_more_zeros)[1], strict=True)
        return any(_differs(one, other) for one, other in pairs)

    def _trained(self, beside: Callable[[Tensor], Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        """The outputs of the first row and the buffers after a pass, which may write into its parameters."""
        rows = map_leaves(beside, self.sample)
        params = {name: _moved(value) if self.moved else value.clone() for name, value in self.model.params.items()}
        buffers = {name: buffer.clone() for name, buffer in self.model.buffers.items()}
        with self.model.on_trial():
            outputs = pytree.tree_leaves(self.model.training(params, buffers, forward, rows))
        count = len(first_leaf(rows))
        return [leaf[0] for leaf in outputs if _has_rows(leaf, count)], list(buffers.values())


def _moved(weight: Tensor) -> Tensor:
    """The weights with small numbers of both signs added, the same in every run; the first is positive."""
    steps = torch.arange(weight.numel(), device=weight.device, dtype=torch.float32).cos()
    return weight + 0.1 * steps.view(weight.shape).to(weight.dtype)


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
