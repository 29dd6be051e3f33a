"""Lightning's classes under both names of the package: ``lightning`` and ``pytorch_lightning``, whose classes are different objects."""

import importlib
from typing import Any

from torch import nn

OTHER, OURS = "pytorch_lightning", "lightning.pytorch"
PACKAGES = ("lightning", OTHER)


def lightning_base(value: Any, name: str) -> type | None:
    """The class of this name that the value derives from, in either package; None if it derives from neither.

    >>> import lightning
    >>> lightning_base(lightning.LightningModule(), "LightningModule") is lightning.LightningModule
    True
    >>> lightning_base(3, "LightningModule")
    """
    kinds = (kind for kind in type(value).__mro__ if kind.__name__ == name and is_lightnings(kind))
    return next(kinds, None)


def overrides(value: Any, name: str, member: str) -> bool:
    """Whether the value's class overrides a member of its base class of this name.

    >>> import lightning
    >>> overrides(lightning.LightningModule(), "LightningModule", "train_dataloader")
    False
    """
    return getattr(type(value), member) is not getattr(lightning_base(value, name), member)


def is_lightnings(kind: type) -> bool:
    """Whether a class was defined by Lightning itself, and not by a user."""
    return kind.__module__.partition(".")[0] in PACKAGES


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


class _OfEitherPackage(type):
    """The classes of one name in both packages, for the command line, which knows the second package only by users' classes."""

    def __subclasscheck__(cls, kind: type) -> bool:
        return any(base is cls or (base.__name__ == cls.__name__ and is_lightnings(base)) for base in kind.__mro__)

    def __instancecheck__(cls, value: Any) -> bool:
        return cls.__subclasscheck__(type(value))


OtherCallback = _OfEitherPackage("Callback", (), {})
OtherDataModule = _OfEitherPackage("LightningDataModule", (), {})
