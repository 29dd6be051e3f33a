"""Pairs as a data set or its ``collate_fn`` returns them, where flcog's own modules receive them in another form."""

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from flcog.core.trees import Tree, leaves, map_leaves
from flcog.data.samples import Returned
from flcog.datamodules.items import collated_targets, inputs_of, targets_of
from flcog.datamodules.workers import Items


class Example(NamedTuple):
    """Some pairs of a data set.

    Args:
        targets: as a batch contains them; None if it contains none.
        bytes: whether their inputs are images of bytes, and no pictures, which only flcog turns into tensors.
    """

    targets: np.ndarray | None
    bytes: bool


def example_of(part: Items, items: list[Any]) -> Example:
    """Look at a few pairs."""
    if part.collate_fn is not None:
        return Example(collated_targets(part, items), has_images_of_bytes(inputs_of(part, items)))
    inputs = [part.pair(item)[0] for item in items]
    pictures = any(hasattr(leaf, "getbands") for leaf in leaves(inputs))
    return Example(targets_of(part, items), not pictures and has_images_of_bytes(inputs_of(part, items)))


def has_images_of_bytes(inputs: Tree) -> bool:
    return any(isinstance(leaf, Tensor) and _is_image_of_bytes(leaf) for leaf in leaves(inputs))


def returned_pairs(targets: np.ndarray, converted: Tensor, example: Example) -> Returned | None:
    """Return the pairs of a set as a ``DataLoader`` returns them, or None if the samples hold them in this form.

    Args:
        targets: the targets of all items.
        converted: the same as flcog's modules receive them.
        example: some pairs.
    """
    like = example.targets
    if like is not None and like.dtype.kind in "biuf" and np.prod(like.shape[1:]) == np.prod(targets.shape[1:]):
        targets = targets.reshape(len(targets), *like.shape[1:]).astype(like.dtype)
    same = targets.dtype.kind not in "biuf" or (targets.shape == converted.shape and _kind(targets) == _kind(converted.numpy()))
    if same and not example.bytes:
        return None
    return Returned(converted if same else torch.from_numpy(targets), example.bytes)


def _kind(array: np.ndarray) -> str:
    """The kind of numbers: ``i`` for all whole ones."""
    return array.dtype.kind.replace("u", "i")


def as_torch_has_it(inputs: Tree) -> Tree:
    """Return inputs as the data set's transforms made them; scale images of bytes to [0, 1]."""
    return map_leaves(_scaled, inputs)


def _is_image_of_bytes(leaf: Tensor) -> bool:
    return leaf.ndim == 4 and leaf.dtype == torch.uint8


def _scaled(leaf: Tensor) -> Tensor:
    if leaf.ndim != 4:
        return leaf
    # Channels-last memory, as for all other images here: convolutions read it faster.
    rows = leaf.permute(0, 2, 3, 1)
    dtype = torch.get_default_dtype() if leaf.dtype == torch.uint8 else leaf.dtype
    copied = torch.empty(rows.shape, dtype=dtype, device=leaf.device).copy_(rows)
    return (copied.div_(255) if leaf.dtype == torch.uint8 else copied).permute(0, 3, 1, 2)
