"""Find the user's code and the layer in an error."""

import os
import sysconfig
import traceback
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from flcog.core.files import short

if TYPE_CHECKING:
    from torch import nn

PYTHON = ("<", f"{sysconfig.get_path('stdlib')}{os.sep}")
"""The folder of Python. "<" begins the names of modules that are compiled into it."""
PACKAGES = {"site-packages", "dist-packages"}
"""The folders of installed packages. A machine may have several: a virtual environment's, the system's and the user's."""
BASES = {"flcog", "lightning", "pytorch_lightning", "torch", "torchvision"}
"""The packages with the base classes of the user's modules and data."""


def is_pythons(file: str) -> bool:
    """Whether a file belongs to Python itself."""
    return file.startswith(PYTHON) and PACKAGES.isdisjoint(Path(file).parts)


def is_ours(frame: FrameType) -> bool:
    """Whether the code of a frame is flcog's."""
    return _package(frame) == "flcog"


def is_base(frame: FrameType) -> bool:
    """Whether the code of a frame belongs to Python or to a package with base classes."""
    return _package(frame) in BASES or is_pythons(frame.f_code.co_filename)


def is_users(frame: FrameType) -> bool:
    """Whether the code of a frame is neither flcog's nor of an installed package.

    torch.compile writes code into temporary files, as modules of torch.
    """
    return not is_base(frame) and PACKAGES.isdisjoint(Path(frame.f_code.co_filename).parts)


def _package(frame: FrameType) -> str:
    name: str = frame.f_globals.get("__name__", "")
    return name.partition(".")[0]


def place_in_users_code(error: BaseException) -> str:
    """The file and line of the user's code where the error arose, such as ``my_model.py, line 12``; empty if it arose elsewhere."""
    lines = [(frame, line) for frame, line in traceback.walk_tb(error.__traceback__) if is_users(frame)]
    return f"{short(Path(lines[-1][0].f_code.co_filename))}, line {lines[-1][1]}" if lines else ""


def layer_of(error: BaseException, module: "nn.Module") -> str:
    """The layer of torch's in which the error arose, such as ``model.0, Linear(in_features=6, ...)``; empty if in none of the module's."""
    layers = {id(layer): (name, layer) for name, layer in module.named_modules() if name}
    for frame, _ in reversed([*traceback.walk_tb(error.__traceback__)]):
        if found := layers.get(id(frame.f_locals.get("self"))):
            name, layer = found
            return f"{name}, {type(layer).__name__}({layer.extra_repr()})" if layer.__module__.startswith("torch.") else ""
    return ""
