"""The former module of :mod:`flcog.method`, which raises an error with the new import."""

from typing import Any


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    raise ImportError(f"flcog.hooks is now flcog.method: write `from flcog.method import {name}`, or `from flcog import {name}`")
