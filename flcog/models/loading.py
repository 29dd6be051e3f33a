"""Loads other packages' networks: from a file of weights, without running code from it, or from Hugging Face's hub."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from flcog.core.extras import require
from flcog.core.text import reason

WRAPPERS = ("state_dict_ema", "model_ema", "state_dict", "model")
"""The keys of the weights in the checkpoints of common training programs."""


def read_weights(path: Path, what: str) -> dict[str, Tensor]:
    """Read a ``state_dict`` from a ``.safetensors`` file or from a file that ``torch.save`` wrote.

    Pickled files may hold tensors and plain containers only (``weights_only``), so that no code in them runs. ``what`` is the model's
    name in error messages.
    """
    try:
        if path.suffix == ".safetensors":
            require("safetensors", what, "export")
            from safetensors.torch import load_file

            return dict(load_file(path, device="cpu"))
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged file raises nearly every kind of error
        raise ValueError(
            f"{what}: weights={str(path)!r} is no readable file of weights ({reason(error)}): give a .safetensors file, or a file of "
            "torch.save(model.state_dict())"
        ) from error
    state = next((state[name] for name in WRAPPERS if isinstance(state.get(name), dict)), state)
    return {str(name).removeprefix("module."): value for name, value in state.items()}


@contextmanager
def loading(source: Any, kind: str, owner: str) -> Iterator[None]:
    """Load a part of transformers' from a folder or the hub, whose failure is explained in one line, or make it of a configuration."""
    try:
        yield
    except Exception as error:  # the hub's client raises nearly every kind where there is no network
        if isinstance(source, dict):
            raise
        raise ValueError(
            f"{owner}: {source} is neither a folder with a {kind}, nor in the hub's cache, nor could it be downloaded "
            f"({reason(error)}): give a folder that save_pretrained wrote"
        ) from error
