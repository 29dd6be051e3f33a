"""Call the user's hooks, name them in errors, and find the user's code in an error."""

import os
import sysconfig
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from flcog.core.files import short

PYTHON = ("<", f"{sysconfig.get_path('stdlib')}{os.sep}")
"""The folder of Python. "<" begins the names of modules that are compiled into it."""
PACKAGES = {"site-packages", "dist-packages"}
"""The folders of installed packages. A machine may have several: a virtual environment's, the system's and the user's."""
BASES = {"flcog", "lightning", "pytorch_lightning", "torch", "torchvision"}
"""The packages with the base classes of the user's modules and data."""


def call_hook(owner: Any, hook: str, *arguments: Any, where: str = "") -> Any:
    """Call a hook of a callback or a module.

    ``where`` is the rest of the note of an error, such as the round.
    """
    try:
        return getattr(owner, hook)(*arguments)
    except Exception as error:
        name_hook(error, owner, hook, where)
        raise


@contextmanager
def logging_as(module: Any, callback: Any) -> Iterator[None]:
    """Let a callback log as the module does by ``self.log`` and ``self.log_dict``, which Lightning attaches to callbacks.

    Attributes of its own with these names stay.
    """
    names = [name for name in ("log", "log_dict") if not hasattr(callback, name)]
    vars(callback).update((name, getattr(module, name)) for name in names)
    try:
        yield
    finally:
        for name in names:
            vars(callback).pop(name, None)


def call_callback(callback: Any, hook: str, trainer: Any, module: Any, *arguments: Any, where: str = "") -> None:
    """Call a hook of a callback of Lightning's."""
    with logging_as(module, callback):
        call_hook(callback, hook, trainer, module, *arguments, where=where)


def name_hook(error: Exception, owner: Any, hook: str, where: str = "") -> None:
    """Add a note with the hook to an error of a user's class. flcog's own errors name their cause."""
    if not has_named_hook(error) and not type(owner).__module__.startswith("flcog."):
        error.add_note(f"in {type(owner).__name__}.{hook}{where}")
        error.in_hook = True  # type: ignore[attr-defined]


def has_named_hook(error: BaseException) -> bool:
    """Whether a note of the error names the hook that raised it."""
    return getattr(error, "in_hook", False)


def is_pythons(file: str) -> bool:
    """Whether a file belongs to Python itself."""
    return file.startswith(PYTHON) and PACKAGES.isdisjoint(Path(file).parts)


def is_installed(file: str) -> bool:
    """Whether a file belongs to Python or to an installed package."""
    return is_pythons(file) or not PACKAGES.isdisjoint(Path(file).parts)


def is_ours(frame: FrameType) -> bool:
    """Whether the code of a frame is flcog's."""
    return _package(frame) == "flcog"


def is_users(frame: FrameType) -> bool:
    """Whether the code of a frame is neither flcog's nor of an installed package.

    torch.compile writes code into temporary files, as modules of torch.
    """
    return _package(frame) not in BASES and not is_installed(frame.f_code.co_filename)


def _package(frame: FrameType) -> str:
    name: str = frame.f_globals.get("__name__", "")
    return name.partition(".")[0]


def place_in_users_code(error: BaseException) -> str:
    """The file and line of the user's code where the error arose, such as ``my_model.py, line 12``; empty if it arose elsewhere."""
    lines = [(frame, line) for frame, line in traceback.walk_tb(error.__traceback__) if is_users(frame)]
    return f"{short(Path(lines[-1][0].f_code.co_filename))}, line {lines[-1][1]}" if lines else ""
