"""Loads the weights of a checkpoint of Lightning's, or of a file of weights, into a model before round 1."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from flcog.core.lightning_packages import lightning_base
from flcog.core.text import reason

PREFIX = "model."
"""The prefix of a network's weights inside a client module."""


def load_initial_weights(model: nn.Module, path: str | Path, resumes: bool = False) -> str:
    """Load weights into a model, and return the absolute path of their file, whose other contents are ignored.

    A run that ``resumes`` replaces them by its checkpoint's. The file may be gone then.
    """
    file = str(Path(path).resolve())
    if resumes and not Path(path).is_file():
        return file
    if lightning_base(model, "LightningModule") is not None:
        model.configure_model()  # type: ignore[operator]  # it may make the layers
    own, given = model.state_dict(), _read_weights(Path(path))
    # A file of a bare network fits a client module around it, and the reverse.
    inside = {name.removeprefix(PREFIX): value for name, value in given.items()}
    namings = [given, inside, {PREFIX + name: value for name, value in given.items()}]
    fitting = next((weights for weights in namings if weights.keys() == own.keys()), given)
    try:
        model.load_state_dict(fitting)
    except RuntimeError as error:
        faults = " ".join(str(error).split()).partition(": ")[2][:300].rstrip(".")
        raise ValueError(
            f"init_from={path} does not fit {type(model).__name__}: {faults}: give weights of the same model"
        ) from error
    return file


def _read_weights(path: Path) -> dict[str, Tensor]:
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
