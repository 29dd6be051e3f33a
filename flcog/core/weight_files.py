"""Reads weights from checkpoints of Lightning's and from files of a ``state_dict`` alone."""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from flcog.core.arguments import digest
from flcog.core.text import reason

PREFIX = "model."
"""The prefix of a network's weights inside a client module."""


def read_weights(path: Path) -> dict[str, Tensor]:
    """Read the weights, and nothing else, so that a file cannot run code."""
    if not path.is_file():
        raise ValueError(f"init_from={path} is no file: give a checkpoint of Lightning's, or a file with a state_dict")
    try:
        content: Any = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # readers of archives and pickles raise nearly every kind of error
        raise ValueError(
            f"init_from={path} cannot be read as tensors, numbers and text ({reason(error)}): write the weights alone with "
            "torch.save(module.state_dict(), FILE)"
        ) from error
    weights = content.get("state_dict", content) if isinstance(content, Mapping) else content
    if not isinstance(weights, Mapping) or not weights or not all(isinstance(value, Tensor) for value in weights.values()):
        raise ValueError(f"init_from={path} contains no weights: give a checkpoint of Lightning's, or a file with a state_dict")
    return dict(weights)


def digest_of(weights: Mapping[str, Tensor]) -> str:
    """A digest that is the same for a network's weights and for those of a client module around it."""
    lines = sorted(f"{name.removeprefix(PREFIX)} {digest(value)}\n" for name, value in weights.items())
    return hashlib.sha256("".join(lines).encode()).hexdigest()[:16]
