"""The states of methods, which a checkpoint must be able to hold: trees of tensors and primitives."""

from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from flcog.core.text import clipped

CONTAINERS = (dict, OrderedDict, Counter, list, tuple, torch.Size)
PRIMITIVES = (type(None), bool, int, float, str)


def is_tensor(value: Any) -> bool:
    return isinstance(value, Tensor) and value.layout == torch.strided and not value.is_meta and not value.is_quantized


def is_state(value: Any) -> bool:
    """Return whether a value consists of tensors and primitives."""
    if isinstance(value, dict):
        return all(map(is_state, value.values()))
    if isinstance(value, list | tuple):
        return all(map(is_state, value))
    return value is None or isinstance(value, bool | int | float | str) or is_tensor(value)


def not_saved(value: Any, what: str) -> Iterator[tuple[str, Any]]:
    """The parts of a state that cannot be read from a checkpoint, each with its place. ``what`` names the state.

    >>> next(not_saved({"seen": [1, {2}]}, "state"))
    ("state['seen'][1]", {2})
    """
    if type(value) in CONTAINERS:
        named = isinstance(value, dict)
        for key, part in value.items() if named else enumerate(value):
            if named and type(key) not in PRIMITIVES:
                yield f"{what}, among its keys", key
            yield from not_saved(part, f"{what}[{key!r}]")
    elif type(value) not in PRIMITIVES and not is_tensor(value):
        yield what, value


def difference(new: Any, first: Any, what: str) -> tuple[str, str, str] | None:
    """Find a part of a state with another structure, type or shape than at first. Returns its place, its form now, and its first form.

    An empty list, an empty dictionary or None may become anything. A number may become a tensor without axes.

    >>> difference({"mean": torch.zeros(()), "last": [1]}, {"mean": 0.0, "last": []}, "state")
    >>> difference({"mean": torch.zeros(2)}, {"mean": 0.0}, "state")
    ("state['mean']", 'a tensor of float32 (2,)', '0.0')
    """
    if first is None or (isinstance(first, dict | list | tuple) and not first):
        return None if is_state(new) else (what, kind_of(new), kind_of(first))
    parts: Iterable[Any] = ()
    if isinstance(first, dict):
        alike, parts = isinstance(new, dict) and new.keys() == first.keys(), first
    elif isinstance(first, list | tuple):
        alike, parts = isinstance(new, list | tuple) and len(new) == len(first), range(len(first))
    elif isinstance(first, Tensor) or isinstance(new, Tensor):
        alike = _shape(new) == _shape(first) is not None and _is_float(new) == _is_float(first)
    else:
        alike = type(new) is type(first)
    if not alike:
        return what, kind_of(new), kind_of(first)
    return next(filter(None, (difference(new[part], first[part], f"{what}[{part!r}]") for part in parts)), None)


def kind_of(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"a tensor of {str(value.dtype).removeprefix('torch.')} {tuple(value.shape)}"
    return clipped(f"{{{', '.join(map(repr, value))}}}" if isinstance(value, dict) else repr(value))


def _shape(value: Any) -> tuple[int, ...] | None:
    """The shape of a tensor, and that of a tensor without axes for a number; None for anything else."""
    if isinstance(value, Tensor):
        return tuple(value.shape) if is_tensor(value) else None
    return () if isinstance(value, int | float) else None


def _is_float(value: Any) -> bool:
    return value.is_floating_point() if isinstance(value, Tensor) else isinstance(value, float)
