"""Hooks and fields of earlier versions, with the spelling that replaces each of them."""

import inspect
from collections.abc import Callable
from typing import Any

FORMER_LEFT_OUT = "derive the class from flcog.ParameterMask, and return torch.tensor(False) for these parameters from mask"
"""The replacement of ``Upload(left_out=...)``."""

FORMER_HOOKS = {
    "report": "return flcog.FirstContact(state, message) from init_client(params, buffers, client); weights receives the messages",
    "client_inputs": "return (params, inputs) from start(apply, params, ctx)",
    "over_data": "declare over_data = staticmethod(function), a pure function (apply, params, batch); finish_client receives its mean "
    "as ctx.data.mean",
    "kept_parameters": FORMER_LEFT_OUT,
    "mask": "derive the class from flcog.ParameterMask",
    "aggregator": "write the rule as a class that derives from flcog.Aggregator",
}
"""The replacement of each hook."""

FORMER_FIELDS = {
    "global_params": "received.params",
    "global_buffers": "received.buffers",
    "client": "state",
    "measured": "data.mean",
    "num_samples": "data.num_samples",
    "weight": "data.weight",
}
"""Fields of earlier contexts, with the field that replaces each of them."""


def check_former(owner: str, name: str) -> None:
    """Refuse a hook of an earlier version."""
    if name in FORMER_HOOKS:
        raise TypeError(f"{owner} defines {name!r}, which is no hook any more: {FORMER_HOOKS[name]}")


def check_arguments(owner: str, hook: Callable[..., Any], base: Callable[..., Any]) -> None:
    """Refuse a hook whose arguments differ from the base class."""
    names = list(inspect.signature(base).parameters)
    try:
        inspect.signature(hook).bind(*names)
    except TypeError:
        written = ", ".join(inspect.signature(hook).parameters)
        raise TypeError(
            f"{owner}.{base.__name__}({written}) must take these arguments: {base.__name__}({', '.join(names)})"
        ) from None
