"""Types that all packages share: named tensors, a method's state, a batch of samples."""

from typing import Any, NamedTuple

from torch import Tensor

from flcog.core.trees import Tree

Params = dict[str, Tensor]
"""Named parameters (or gradients, deltas, control variates, ... shaped like them)."""

Slot = Any
"""A pytree (dict, list or tuple) of tensors that belongs to one method."""


class Batch(NamedTuple):
    """The samples of one local step.

    Args:
        inputs: a network's inputs, or a whole batch as a data set's ``collate_fn`` returns it.
        targets: their targets; an empty tuple if ``inputs`` are a whole batch.
        mask: None if every row counts, else [B] with 0 for padding under vmap.
    """

    inputs: Tree
    targets: Tree
    mask: Tensor | None = None

    @property
    def given(self) -> Any:
        """The batch as a module's own ``training_step`` receives it: a pair, or the whole batch."""
        return given(self.inputs, self.targets)


def changed(batch: Any, before: Tree) -> tuple[Tree, Tree]:
    """The inputs and targets of a batch that a hook has changed.

    Args:
        batch: as a module's own steps will receive it.
        before: the targets before the change; an empty tuple if the batch was whole.

    >>> changed((1, 2), before=3), changed({"image": 1}, before=())
    ((1, 2), ({'image': 1}, ()))
    """
    pair = type(batch) is tuple and len(batch) == 2 and not (isinstance(before, tuple) and not before)
    return batch if pair else (batch, ())


def given(inputs: Tree, targets: Tree) -> Any:
    """The batch of these inputs and targets as a module's own steps receive it.

    >>> given({"image": 1}, ()), given(1, 2)
    ({'image': 1}, (1, 2))
    """
    return inputs if isinstance(targets, tuple) and not targets else (inputs, targets)
