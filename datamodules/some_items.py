"""A few items of a set, which show the form of all of them."""

import hashlib
from typing import Any

import numpy as np
from torch import Tensor
from torch.utils import _pytree as pytree

from flcog.core.randomness import fold_each
from flcog.datamodules.items import array_of
from flcog.datamodules.workers import Items, Workers, result_of

PROBED = 16
"""The number of items, spread over a set, that are read to learn the form of the rows of its cache file, and whether it draws at random."""

COMPARED = 100
"""The most items that are read to compare their targets with the data set's ``targets``."""


def of_each_class(targets: np.ndarray) -> np.ndarray:
    """Return the first item of each class and the last item of all; some classes only if there are more than ``COMPARED``."""
    if targets.ndim != 1:
        return spread(len(targets), COMPARED)
    firsts = np.unique(targets, return_index=True)[1]
    return np.unique([*firsts[spread(len(firsts), COMPARED)], len(targets) - 1])


def spread(count: int, most: int) -> np.ndarray:
    """Return at most ``most`` of ``count`` indices, evenly spaced."""
    return np.unique(np.linspace(0, count - 1, most).astype(np.int64))


def change_at_random(workers: Workers, part: str, count: int) -> bool:
    """Whether other random keys make other items."""
    some = spread(count, PROBED)
    one, other = (result_of(workers.submit(part, _digest_of, some, fold_each(draw, some)), part) for draw in (1, 2))
    return bool(one != other)


def _digest_of(part: Items, items: list[Any]) -> str:
    digest = hashlib.sha256()
    for leaf in pytree.tree_leaves(items):
        if isinstance(leaf, Tensor | np.ndarray | np.generic | float | int) or hasattr(leaf, "getbands"):
            digest.update((array_of(leaf) if isinstance(leaf, Tensor) else np.asarray(leaf)).tobytes())
    return digest.hexdigest()
