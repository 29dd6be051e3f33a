"""ItemSet: one part of a data set whose items are read one by one."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from flcog.core.trees import Tree
from flcog.data.samples import checked_users


@dataclass(frozen=True)
class ItemSet:
    """One part of a data set.

    Args:
        items: an object with a length and ``items[index]``; each item is a pair of input and target.
        targets: the targets of all items, if they are known without reading items: names, numbers, or rows of 0 and 1.
        checked: whether ``targets`` is an attribute of the data set, so that items may have other targets.
        users: the natural owner of each item.
        stored: inputs that exist as tensors and need no transform.
        whole: whether a step receives a batch as it is: of ``stored``, which contains everything that the items contain, or of items that
            are batches themselves.
        transformed: whether a ``target_transform`` makes other targets of ``targets``.
        evaluated: the same items as evaluations read them, without random changes; None if they are ``items``.
        collate_fn: the user's function from a list of items to a batch; None stacks the items.
    """

    items: Any
    targets: np.ndarray | None = None
    checked: bool = True
    users: np.ndarray | None = None
    stored: Tree | None = None
    whole: bool = False
    transformed: bool = False
    evaluated: Any = None
    collate_fn: Callable[[list[Any]], Any] | None = None

    def __post_init__(self) -> None:
        if self.targets is not None and len(self.targets) != len(self.items):
            raise ValueError(f"{len(self.items)} items but {len(self.targets)} targets: give one for each item, in their order")
        if self.users is not None:  # now, because reading the items may take hours
            checked_users(self.users, len(self.items))


def in_evaluations(part: str) -> str:
    """The name that worker processes give a set as evaluations read it."""
    return f"{part} in evaluations"
