"""Hooks of earlier versions, with the spelling that replaces each of them."""

import inspect
from collections.abc import Callable
from typing import Any

FORMER_HOOKS = {
    "report": "return flcog.FirstContact(state, message) from init_client(params, buffers, client); weights receives the messages",
    "kept_parameters": "return torch.tensor(False) for these parameters from mask(params, client)",
}
"""By name: what to write instead."""


def check_former(owner: str, name: str) -> None:
    """Refuse a hook of an earlier version."""
    if name in FORMER_HOOKS:
        raise TypeError(f"{owner} defines {name!r}, which is no hook any more: {FORMER_HOOKS[name]}")


def check_arguments(owner: str, hook: Callable[..., Any], base: Callable[..., Any]) -> None:
    """Refuse a hook that cannot take the arguments with which the engine calls it."""
    names = list(inspect.signature(base).parameters)
    try:
        inspect.signature(hook).bind(*names)
    except TypeError:
        written = ", ".join(inspect.signature(hook).parameters)
        raise TypeError(
            f"{owner}.{base.__name__}({written}) must take these arguments: {base.__name__}({', '.join(names)})"
        ) from None
