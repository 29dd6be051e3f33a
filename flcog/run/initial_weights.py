"""Loads the weights of a checkpoint of Lightning's, or of a file of weights, into a model before round 1."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from flcog.core.lightning_packages import lightning_base

PREFIX = "model."
"""The prefix of a network's weights inside a client module."""


def load_initial_weights(model: nn.Module, path: str | Path) -> None:
    """Load weights into a model; other contents of the file, such as optimiser states, are ignored.

    Args:
        model: the user's module or network.
        path: a checkpoint that ``lightning.Trainer`` or flcog wrote, or a file with a ``state_dict`` alone. Only tensors and primitives
            are read from it, so that a file cannot run code.
    """
    if lightning_base(model, "LightningModule") is not None:
        model.configure_model()  # type: ignore[operator]  # it may make the layers
    own, given = model.state_dict(), _weights(Path(path))
    fitting = next((named for named in _namings(given) if named.keys() == own.keys()), None)
    kind = type(model).__name__
    if fitting is None:
        odd = sorted(own.keys() ^ given.keys())[0]
        where = f"{kind} has no such weight" if odd in given else "the file lacks it"
        raise ValueError(f"init_from={path} does not fit {kind}: {odd} ({where}): give weights of the same model")
    for name, value in fitting.items():
        if value.shape != own[name].shape:
            raise ValueError(
                f"init_from={path} does not fit {kind}: {name} has shape {list(value.shape)} there and {list(own[name].shape)} here: give "
                "weights of the same model"
            )
    model.load_state_dict(fitting)


def _namings(given: Mapping[str, Tensor]) -> list[dict[str, Tensor]]:
    """The weights under the names of a client module, and of the network in it."""
    inside = {name.removeprefix(PREFIX): value for name, value in given.items()}
    return [
        dict(given),
        *([inside] if len(inside) == len(given) else []),
        {PREFIX + name: value for name, value in given.items()},
    ]


def _weights(path: Path) -> dict[str, Tensor]:
    if not path.is_file():
        raise ValueError(f"init_from={path} is no file: give a checkpoint of Lightning's, or a file with a state_dict")
    try:
        content: Any = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # readers of archives and pickles raise nearly every kind of error
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise ValueError(
            f"init_from={path} cannot be read as tensors, numbers and text ({reason}): write the weights alone with "
            "torch.save(module.state_dict(), FILE)"
        ) from error
    weights = content.get("state_dict", content) if isinstance(content, Mapping) else content
    if not isinstance(weights, Mapping) or not weights or not all(isinstance(value, Tensor) for value in weights.values()):
        raise ValueError(f"init_from={path} contains no weights: give a checkpoint of Lightning's, or a file with a state_dict")
    return dict(weights)
