"""The constructor arguments of objects, as numbers and strings under dotted names, which checkpoints store and compare."""

import functools
import hashlib
import inspect
from collections.abc import Collection, Mapping
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flcog.core.masking import masked

DEEPEST = 8
"""The greatest depth of nested objects. Objects that refer to each other would otherwise never end."""

WHERE_DATA_LIE = ("data_dir", "root", "dataset", "cache_dir", "directory", "path", "download", "eval_batch_size", "num_workers")
"""Arguments of any object that a resumed run may change: the samples themselves are compared."""

LARGE = 2**20
"""Only the shape is recorded of arrays of this many bytes, because hashing might read a whole disk."""


def constructor_arguments(thing: object) -> dict[str, Any]:
    """The constructor arguments that an object keeps as attributes of the same names."""
    kept: Mapping[str, Any] = getattr(thing, "__dict__", {})
    names = [name for cls in type(thing).__mro__ if "__init__" in vars(cls) for name in _parameters(cls)]
    return {name: kept[name] for name in names if name in kept} | dict(getattr(thing, "hparams", {}))


@functools.cache
def _parameters(cls: type) -> list[str]:
    try:
        return list(inspect.signature(cls.__init__).parameters)  # type: ignore[misc]
    except ValueError:  # a class written in C may have no signature
        return []


def plain(value: Any, depth: int = 0) -> Any:
    """Convert a value to numbers, strings, lists and dicts. The key "" contains an object's class."""
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, Tensor | np.ndarray):
        return digest(value) if value.nbytes < LARGE else f"{value.dtype} {tuple(value.shape)}"
    if isinstance(value, str | Path | torch.dtype | torch.device):
        return str(value)
    if isinstance(value, Enum):
        return value.name
    if hasattr(value, "__qualname__") or depth == DEEPEST:
        return getattr(value, "__qualname__", type(value).__qualname__)
    further = functools.partial(plain, depth=depth + 1)
    if isinstance(value, Mapping):
        return {str(name): further(part) for name, part in value.items()}
    if isinstance(value, set | frozenset):
        return sorted(map(str, value))
    if isinstance(value, list | tuple):
        return list(map(further, value))
    if isinstance(value, functools.partial):
        return {"": further(value.func)} | {name: further(part) for name, part in value.keywords.items()}
    return {"": type(value).__qualname__} | {name: further(part) for name, part in constructor_arguments(value).items()}


def by_name(value: Any) -> dict[str, Any]:
    """Nested settings by dotted names, without the places where data lie. Secrets are masked, because checkpoints are shared."""
    return masked(flat(plain(value), leave_out=WHERE_DATA_LIE))


def flat(value: Any, leave_out: Collection[str] = (), name: str = "") -> dict[str, Any]:
    """Nested settings by dotted names, as on the command line, but without ``init_args``."""
    if isinstance(value, list) and any(isinstance(part, dict | list) for part in value):
        value = {str(place): part for place, part in enumerate(value)}
    if not isinstance(value, dict):
        return {name: value}
    parts: dict[str, Any] = {}
    for key, part in value.items():
        if key not in leave_out:
            own = key in ("", "class_path", "init_args", "dict_kwargs")
            parts |= flat(part, leave_out, name if own else f"{name}.{key}".removeprefix("."))
    return parts


def digest(value: Tensor | np.ndarray) -> str:
    """A hash of an array's values, as sixteen hex digits."""
    if isinstance(value, Tensor):
        value = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    content = repr(value.tolist()).encode() if value.dtype.hasobject else value.tobytes()
    return hashlib.sha256(content).hexdigest()[:16]
