"""The envelope: everything that a client sends in a round, as one tree of tensors with named fields."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from flcog.core.trees import map_once
from flcog.core.types import Params
from flcog.wire.packing import message


@message
class Envelope(NamedTuple):
    """Everything that a client sends in a round. Replies of several clients hold it with a leading client axis.

    Args:
        delta: the client's change of the model by parameter; empty if it sends no weights.
        buffers: the shared buffers (BatchNorm's statistics) after training, as values; empty if it sends no weights.
        mean: for each method the message whose weighted mean the server receives.
        sum: for each method the message whose plain sum over the cohort the server receives.
        measured: the client's measurements of its own training, such as ``loss``. No stage changes them.
    """

    delta: Params
    buffers: Params
    mean: Mapping[str, Any] = {}
    sum: Mapping[str, Any] = {}
    measured: Mapping[str, Tensor] = {}


@message
class Field(NamedTuple):
    """The shape and type of one client's tensor, as it was before it was encoded."""

    shape: tuple[int, ...]
    dtype: torch.dtype


@message
class Manifest(NamedTuple):
    """A description of one client's envelope that is known without reading a tensor; all clients of a reply share it.

    ``sizes`` are the encoded bytes by sender, ``model`` and then each method, ``params`` those of the change of each parameter with a
    mask, and ``plain`` ones the same before encoding. ``fields`` is the envelope before encoding, with a :class:`Field` for each
    tensor; None if nothing encodes.
    """

    sizes: dict[str, int]
    plain_sizes: dict[str, int]
    params: dict[str, int]
    plain_params: dict[str, int]
    fields: Any = None


def map_fields(function: Callable[..., Any], envelope: Envelope, *others: Any) -> Envelope:
    """The envelope with ``function`` of each of its tensors but the measurements. A tensor that appears twice is mapped once.

    Args:
        function: takes a tensor, and the leaves at the same place of ``others``.
        envelope: one client's.
        others: trees of the same structure.

    >>> w = torch.ones(2)
    >>> doubled = map_fields(lambda value: 2 * value, Envelope({"w": w}, {}, sum={"Method": {"delta": w}}))
    >>> doubled.delta["w"] is doubled.sum["Method"]["delta"]
    True
    """
    bare, *more = (each._replace(measured={}) for each in (envelope, *others))
    leaves, spec = pytree.tree_flatten(bare)
    rows = list(zip(leaves, *map(spec.flatten_up_to, more), strict=True))
    first = {id(row[0]): row for row in reversed(rows)}
    mapped: Envelope = map_once(lambda value: function(*first[id(value)]), bare)
    return mapped._replace(measured=envelope.measured)


def changes_of(buffers: Params, received: Params) -> Params:
    """The changes of buffers from the received ones, for one client or with a leading client axis.

    Whole numbers and booleans change by an int64, because short and unsigned integers would wrap around, and torch subtracts no booleans.
    Numbers that the server has as NaN or infinite, such as those of a mask, stay so.

    >>> changes_of({"count": torch.tensor(2, dtype=torch.uint8)}, {"count": torch.tensor(5, dtype=torch.uint8)})
    {'count': tensor(-3)}
    """
    changes = {name: addable(value) - addable(received[name]) for name, value in buffers.items()}
    floating = {name: change for name, change in changes.items() if change.is_floating_point()}
    return changes | {name: torch.where(received[name].isfinite(), change, 0.0) for name, change in floating.items()}


def addable(value: Tensor) -> Tensor:
    """The same numbers in a type that has a sign: floating-point numbers as they are, all others as int64."""
    return value if value.is_floating_point() else value.long()


def sizes_of(envelope: Envelope) -> dict[str, int]:
    """The bytes of one client's envelope by sender. A tensor that appears twice is sent, and counted, once.

    >>> w = torch.ones(2)
    >>> sizes_of(Envelope({"w": w}, {}, sum={"SCAFFOLD": {"change": torch.ones(3), "delta": w}}))
    {'model': 8, 'SCAFFOLD': 12}
    """
    parts: dict[str, Any] = {"model": (envelope.delta, envelope.buffers)}
    parts |= {name: (envelope.mean.get(name), envelope.sum.get(name)) for name in {**envelope.mean, **envelope.sum}}
    seen, sizes = set[int](), {}
    for sender, tree in parts.items():
        sizes[sender] = 0
        for leaf in pytree.tree_leaves(tree):
            if id(leaf) not in seen:
                sizes[sender] += message_bytes(leaf)
                if isinstance(leaf, Tensor):  # two equal numbers may be one object
                    seen.add(id(leaf))
    return sizes


def message_bytes(value: Any) -> int:
    """The bytes of a tensor, or of one number, which is sent as a float32."""
    if isinstance(value, Tensor):
        return value.numel() * value.element_size()
    return 0 if value is None else 4


def fields_of(envelope: Envelope) -> Any:
    """The envelope's fields with their shapes and types in the place of tensors."""
    bare = envelope._replace(measured={})
    return pytree.tree_map(lambda value: Field(tuple(value.shape), value.dtype), pytree.tree_map(torch.as_tensor, bare))


def suspects(tree: Any, count: int) -> Tensor:
    """Clients whose values may not all be finite, [clients]. Their sums show it, in one pass without temporary tensors.

    A sum of finite values can overflow: :func:`is_sound` decides.
    """
    sums = [value.reshape(count, -1).sum(1) for value in floats(tree)]
    if not sums:
        return torch.zeros(count, dtype=torch.bool)
    return ~torch.isfinite(torch.stack([each.to(sums[0]) for each in sums])).all(0)


def is_sound(tree: Any, k: int) -> bool:
    """Whether all values of one client are finite."""
    return all(bool(torch.isfinite(value[k]).all()) for value in floats(tree))


def floats(tree: Any) -> list[Tensor]:
    return [value for value in pytree.tree_leaves(tree) if isinstance(value, Tensor) and value.is_floating_point()]


def of_client(tree: Any, k: int) -> Any:
    """One client's part of a tree with a leading client axis, in memory of its own, so that it does not hold the others'."""
    return pytree.tree_map(lambda value: value[k].clone() if len(value) > 1 else value[k], tree)
