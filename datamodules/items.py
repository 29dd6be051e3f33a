"""The items of a data set, and the functions that make batches, targets and rows of them, in worker processes or in this one."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils.data import default_collate

from flcog.core.trees import Tree, form, has_rows, leaves
from flcog.datamodules.decoded_images import FULL, greys_of

Target = str | int | Callable[[Any], Any] | None
"""The place of a target in an item of a data set."""


class UnusableItem(ValueError):
    """An item, or a batch, that a federation cannot use."""


@dataclass(frozen=True)
class ItemSet:
    """One part of a data set: ``items[index]``, and what is known without reading them.

    ``targets`` that are ``checked`` come from an attribute of the data set, so that items may have others. ``stored`` inputs exist as
    tensors and need no transform. A step receives a ``whole`` batch as it is: of ``stored``, which then contains everything in the items,
    or of items that are batches themselves. Evaluations read the items of ``evaluated``, without random changes.
    """

    items: Any
    targets: np.ndarray | None = None
    checked: bool = True
    users: np.ndarray | None = None
    stored: Tree | None = None
    whole: bool = False
    evaluated: Any = None
    collate_fn: Callable[[list[Any]], Any] | None = None
    place: Target = None

    def __len__(self) -> int:
        return len(self.items)

    def pair(self, item: Any) -> tuple[Any, Any]:
        """The inputs and the target of an item or a collated batch. An item alone is an input, if the targets are known."""
        if is_pair(item):
            return item[0], item[1]
        if self.targets is not None:
            return item, None
        raise UnusableItem(
            f"it is {form(item)}, and an item is a pair (input, target), whose input may be a dict or a tuple of tensors: return such "
            'pairs, name the target (target="label"), or give targets'
        )

    def target_of(self, item: Any) -> Any:
        if self.place is None:
            return self.pair(item)[1]
        return self.place(item) if callable(self.place) else item[self.place]


Make = Callable[[ItemSet, list[Any]], Any]
"""A function from a set and some of its items to a result. It must be importable by name, or a ``partial`` of such a function."""


def inputs_of(part: ItemSet, items: list[Any]) -> Tree:
    """A batch's inputs: the result of the user's ``collate_fn``, or the stacked tensors of the items."""
    if part.collate_fn is not None:
        return _tensors(part.pair(part.collate_fn(items))[0])
    return _tensors(default_collate([collatable(part.pair(item)[0]) for item in items]))


def whole_batch_of(part: ItemSet, items: list[Any]) -> Any:
    """A batch as torch's ``DataLoader`` makes it."""
    return (part.collate_fn or default_collate)(items)


def targets_of(part: ItemSet, items: list[Any]) -> np.ndarray:
    """The items' own targets."""
    return as_array([part.target_of(item) for item in items])


def form_of(part: ItemSet, items: list[Any]) -> Any:
    """The tree of a single input, without its values."""
    return pytree.tree_structure(_tensors(collatable(part.pair(items[0])[0])))


def rows_of(part: ItemSet, items: list[Any], dtype: np.dtype | None = None, with_targets: bool = False) -> np.ndarray:
    """Items as rows of one array, with a field for each tensor of an input, and perhaps one for the target."""
    rows: np.ndarray | None = None
    for number, item in enumerate(items):
        input, target = part.pair(item)
        arrays = [array_of(leaf) for leaf in leaves(_tensors(collatable(input)))] + [as_array(target)] * with_targets
        if rows is None:
            rows = np.empty(len(items), dtype or [(f"part{i}", array.dtype, array.shape) for i, array in enumerate(arrays)])
        for field, array in zip(rows.dtype.names or (), arrays, strict=True):
            rows[field][number] = array
    assert rows is not None
    return rows


class Look(NamedTuple):
    """The form of some items, which stand for all items of their set."""

    labelled: bool  # each is a pair whose second part can be a target: a number, a text, or a row of numbers
    pairs: bool  # their batch is a pair of tensors for a network, and of targets
    lone: bool  # each is the input of a network alone
    targets: np.ndarray | None = None  # of pairs, as a batch contains them
    bytes: bool = False  # the inputs of pairs are images of bytes, and no pictures, which only flcog turns into tensors


def look_at(part: ItemSet, items: list[Any]) -> Look:
    """Describe the form of some items."""
    labelled = all(is_pair(item) and _can_be_target(item[1]) for item in items)
    if part.collate_fn is not None:
        batch = part.collate_fn(items)
        if not (is_pair(batch) and _is_accepted(_tensors, batch[0])):
            return Look(labelled, pairs=False, lone=False)
        try:
            targets = None if batch[1] is None else as_array(batch[1])
        except ValueError:  # several targets of different shapes, as those of pytorch-forecasting
            return Look(labelled, pairs=False, lone=False)
        return Look(labelled, True, False, targets, has_images_of_bytes(_tensors(batch[0])))
    inputs = [item[0] for item in items if is_pair(item)]
    if len(inputs) == len(items):
        if not labelled or not all(_is_accepted(collatable, input) for input in inputs):
            return Look(labelled, pairs=False, lone=False)
        pictures = any(hasattr(leaf, "getbands") for leaf in leaves(inputs[0]))
        bytes = not pictures and has_images_of_bytes(inputs_of(part, items[:1]))
        return Look(labelled, True, False, targets_of(part, items[:1]), bytes)
    return Look(labelled, False, not inputs and all(_is_accepted(collatable, item) for item in items))


def has_images_of_bytes(inputs: Tree) -> bool:
    return any(isinstance(leaf, Tensor) and leaf.ndim == 4 and leaf.dtype == torch.uint8 for leaf in leaves(inputs))


def needs_whole_batches(part: ItemSet, items: list[Any], make: Make) -> bool:
    """Whether batches must be read one by one: they are the user's own, or contain parts without a row for each item."""
    batch = make(part, items)
    return part.collate_fn is not None or (make is whole_batch_of and not has_rows(batch, len(items)))


def _is_accepted(convert: Callable[[Any], Any], value: Any) -> bool:
    """Whether it contains numbers, tensors and pictures, which a network could take, and no text."""
    try:
        convert(value)
    except UnusableItem:
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


def require_finite_input(part: ItemSet, item: Any) -> None:
    """Refuse an item with NaN or infinite inputs: in training it would look like a learning rate that is too high.

    Items of other forms than a pair or a single tensor may use NaN in a sense of their own.
    """
    if not (is_pair(item) or part.targets is not None or isinstance(item, Tensor | np.ndarray)):
        return
    for leaf in pytree.tree_leaves(item[0] if is_pair(item) else item):
        if isinstance(leaf, np.ndarray) and leaf.dtype.kind == "f":
            leaf = torch.from_numpy(leaf)
        if isinstance(leaf, Tensor) and leaf.is_floating_point() and not bool(leaf.isfinite().all()):
            raise UnusableItem("its input holds NaN or infinite values; correct or drop it")


def is_pair(item: Any) -> bool:
    return isinstance(item, tuple | list) and len(item) == 2


def as_array(targets: Any) -> np.ndarray:
    """Targets as an array: of numbers, or of text."""
    if isinstance(targets, list | tuple) and any(isinstance(target, Tensor) for target in targets):
        targets = [np.asarray(target) for target in targets]
    return targets.detach().cpu().numpy() if isinstance(targets, Tensor) else np.asarray(targets)


def array_of(tensor: Tensor) -> np.ndarray:
    """A tensor's values; numpy has no bfloat16."""
    return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()


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
        raise UnusableItem(
            f"its input holds {kind}, and a network takes numbers: make them in a transform (a tokenizer, for text)"
        )
    if hasattr(input, "getbands"):  # a Pillow image, as torchvision's sets give them without a transform
        greys = greys_of(input)
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
    raise UnusableItem(f"its input holds a {type(inputs).__name__}, and a network takes tensors: make them in a transform")
