"""Lightning under its other name: classes of ``pytorch_lightning`` become those of ``lightning``, which are the same code."""

import importlib
from typing import Any

from torch import nn

OTHER, OURS = "pytorch_lightning", "lightning.pytorch"


def adopt(value: Any) -> Any:
    """Let an object, its layers and their classes derive from ``lightning`` where they derive from ``pytorch_lightning``."""
    for part in value.modules() if isinstance(value, nn.Module) else (value,):
        for kind in type(part).__mro__:
            if not _is_other(kind) and any(map(_is_other, kind.__bases__)):
                kind.__bases__ = tuple(map(_counterpart, kind.__bases__))
        if _is_other(type(part)):
            part.__class__ = _counterpart(type(part))
    return value


def _is_other(kind: type) -> bool:
    return kind.__module__.partition(".")[0] == OTHER


def _counterpart(kind: type) -> type:
    """The same class of ``lightning``; any other class as it is."""
    if not _is_other(kind):
        return kind
    found: type = getattr(importlib.import_module(kind.__module__.replace(OTHER, OURS, 1)), kind.__name__)
    return found
