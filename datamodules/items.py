"""Functions that worker processes call with the items of a data set, to make batches, targets, or rows of a file."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils.data import default_collate

from flcog.core.trees import Tree, leaves
from flcog.datamodules.deep_greys import FULL, greys_of
from flcog.datamodules.workers import Items, is_pair


def inputs_of(part: Items, items: list[Any]) -> Tree:
    """Return a batch's inputs: the result of the user's ``collate_fn``, or the stacked tensors of the items."""
    if part.collate_fn is not None:
        return _tensors(part.pair(part.collate_fn(items))[0])
    try:
        return _tensors(default_collate([collatable(part.pair(item)[0]) for item in items]))
    except RuntimeError as error:
        if "equal size" not in str(error):
            raise
        raise ValueError(f"their shapes differ ({error}): give a collate_fn that pads them to one") from error


def whole_batch_of(part: Items, items: list[Any]) -> Any:
    """Return a batch as torch's ``DataLoader`` makes it."""
    return (part.collate_fn or default_collate)(items)


class Look(NamedTuple):
    """The form of some items.

    Args:
        labelled: whether each item is a pair whose second part can be a target: a number, a text, or a row of numbers.
        pairs: whether their batch is a pair of tensors for a network, and of targets.
        lone: whether each item is the input of a network alone.
    """

    labelled: bool
    pairs: bool
    lone: bool


def look_at(part: Items, items: list[Any]) -> Look:
    """Describe the form of some items."""
    labelled = all(is_pair(item) and _can_be_target(item[1]) for item in items)
    lone = part.collate_fn is None and not any(map(is_pair, items)) and all(map(_is_input, items))
    if part.collate_fn is not None:
        batch = part.collate_fn(items)
        return Look(labelled, is_pair(batch) and _holds_tensors(batch[0]), lone)
    return Look(labelled, labelled and all(_is_input(item[0]) for item in items), lone)


def _is_input(value: Any) -> bool:
    """Whether a network could take it: it contains numbers, tensors and pictures, and no text."""
    return _is_accepted(collatable, value)


def _holds_tensors(inputs: Any) -> bool:
    """Whether all parts of a batch's inputs are tensors or numbers."""
    return _is_accepted(_tensors, inputs)


def _is_accepted(convert: Callable[[Any], Any], value: Any) -> bool:
    try:
        convert(value)
    except ValueError:
        return False
    return True


def _can_be_target(value: Any) -> bool:
    if value is None or isinstance(value, Mapping):
        return False
    try:
        target = as_array(value)
    except Exception:  # parts of different lengths, objects that are no numbers
        return False
    return can_be_targets(target[None])


def can_be_targets(targets: Any) -> bool:
    """Whether numbers or texts [N, ...] can be classes, labels or values, and are no sequences or images to predict."""
    array = as_array(targets)
    sequences = array.ndim == 2 and array.shape[1] > 1 and array.dtype.kind in "iu" and not np.isin(array, (0, 1)).all()
    return array.ndim <= 2 and array.dtype.kind in "biufUT" and not sequences


def targets_of(part: Items, items: list[Any]) -> np.ndarray:
    """The items' own targets."""
    return as_array([part.target_of(item) for item in items])


def collated_targets(part: Items, items: list[Any]) -> np.ndarray | None:
    """Return the targets in the result of the user's ``collate_fn``, or None."""
    assert part.collate_fn is not None
    targets = part.pair(part.collate_fn(items))[1]
    return None if targets is None else as_array(targets)


def form_of(part: Items, items: list[Any]) -> Any:
    """The tree of a single input, without its values."""
    return pytree.tree_flatten(_tensors(collatable(part.pair(items[0])[0])))[1]


def rows_of(part: Items, items: list[Any], dtype: np.dtype | None = None, with_targets: bool = False) -> np.ndarray:
    """Items as rows of one array, with a field for each tensor of an input.

    Args:
        part: the set.
        items: some of it.
        dtype: of the rows; None to take it from the first item.
        with_targets: whether the last field is the target.
    """
    rows: np.ndarray | None = None
    for number, item in enumerate(items):
        input, target = part.pair(item)
        arrays = [array_of(leaf) for leaf in leaves(_tensors(collatable(input)))] + [as_array(target)] * with_targets
        if rows is None:
            rows = np.empty(len(items), dtype or [(f"part{i}", array.dtype, array.shape) for i, array in enumerate(arrays)])
        names = rows.dtype.names or ()
        shapes, kept = [list(array.shape) for array in arrays], [list(rows.dtype[name].shape) for name in names]
        if shapes != kept:
            raise ValueError(
                f"its tensors have shapes {shapes}, and another item's {kept}: a file keeps items of one shape; leave out cache_dir"
            )
        for field, array in zip(names, arrays, strict=True):
            rows[field][number] = array
    assert rows is not None
    return rows


def as_array(targets: Any) -> np.ndarray:
    """Targets as an array: of numbers, or of text."""
    if isinstance(targets, list | tuple) and any(isinstance(target, Tensor) for target in targets):
        targets = [np.asarray(target) for target in targets]
    return targets.detach().cpu().numpy() if isinstance(targets, Tensor) else np.asarray(targets)


def collatable(input: Any) -> Any:
    """An input with tensors in the place of pictures and lists of numbers."""
    if isinstance(input, Mapping):
        return {name: collatable(part) for name, part in input.items()}
    if isinstance(input, tuple | list):
        if all(isinstance(part, int | float) for part in input):
            return torch.tensor(input)
        parts = [collatable(part) for part in input]
        return type(input)(*parts) if hasattr(input, "_fields") else type(input)(parts)
    if isinstance(input, str | bytes) or input is None:
        kind = "nothing" if input is None else "text"
        raise ValueError(f"its input holds {kind}, and a network takes numbers: make them in a transform (a tokenizer, for text)")
    if hasattr(input, "getbands"):  # a Pillow image, as torchvision's sets give them without a transform
        greys = greys_of(input)
        if greys is None and input.mode == "I":
            raise TypeError(  # in a batch of any form
                "its input is a picture of 32-bit numbers (mode I), whose black and white are unknown: make floats of it in a transform"
            )
        pixels = np.array(input) if greys is None else greys.astype(np.float32) / FULL
        return torch.from_numpy(pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1).copy())
    return input


def _tensors(inputs: Any) -> Tree:
    """Tensors in plain containers: a tokenizer's batch is a mapping of its own kind."""
    if isinstance(inputs, Mapping):
        return {name: _tensors(part) for name, part in inputs.items()}
    # A PackedSequence of sorted sequences is a named tuple of tensors and None.
    if isinstance(inputs, tuple | list) and not (hasattr(inputs, "_fields") and any(part is None for part in inputs)):
        parts = [_tensors(part) for part in inputs]
        return type(inputs)(*parts) if hasattr(inputs, "_fields") else type(inputs)(parts)
    if isinstance(inputs, Tensor):
        return inputs.detach()
    if isinstance(inputs, np.ndarray | np.generic | int | float):
        return torch.as_tensor(inputs)
    raise ValueError(f"its input holds a {type(inputs).__name__}, and a network takes tensors: make them in a transform")


def array_of(tensor: Tensor) -> np.ndarray:
    """A tensor's values; numpy has no bfloat16."""
    return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()
