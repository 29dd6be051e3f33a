"""Finds the values that a module's training step reads from its trainer, in the code of the step and of the methods that it calls."""

import dis
import inspect
from collections.abc import Iterator
from types import CodeType, FunctionType
from typing import Any

from flcog.core.lightning_packages import PACKAGES
from flcog.own_steps import is_known_to_pure_steps

BEGINNINGS = ("training_step", "forward", "per_example_loss")
"""The methods that a pure step calls."""

OF_A_TRAINER = ("global_step", "optimizers", "lr_schedulers")
"""Attributes of a module that a pure step cannot provide."""


def values_read(module: Any) -> list[str]:
    """The values of its trainer that a module reads in its training step and a pure step does not know, such as ``self.global_step``.

    Args:
        module: the client's module.
    """
    found: dict[str, None] = {}
    waiting, seen = list(BEGINNINGS), set[str]()
    while waiting:
        name = waiting.pop()
        if name in seen or (code := _code_of_user(type(module), name)) is None:
            continue
        seen.add(name)
        for owner, attribute, following in _attributes(code):
            if owner:
                continue
            if attribute in OF_A_TRAINER:
                found[f"self.{attribute}"] = None
            elif attribute == "trainer" and not (following and is_known_to_pure_steps(following)):
                found[f"self.trainer.{following}" if following else "self.trainer"] = None
            waiting.append(attribute)
    return sorted(found)


def _code_of_user(kind: type, name: str) -> CodeType | None:
    """The code of a method or property that a user wrote."""
    member = inspect.getattr_static(kind, name, None)
    function = getattr(member, "fget", member)
    if not isinstance(function, FunctionType) or str(function.__module__).partition(".")[0] in (*PACKAGES, "torch", "flcog"):
        return None
    return inspect.unwrap(function).__code__


def _attributes(code: CodeType) -> Iterator[tuple[str, str, str]]:
    """The attributes that the code reads: the attribute before it in a chain, its own name, and the attribute after it."""
    chain: list[str] = []
    for instruction in [*dis.get_instructions(code), None]:
        if instruction is not None and instruction.opname in ("LOAD_ATTR", "LOAD_METHOD"):
            chain.append(instruction.argval)
            continue
        yield from zip(["", *chain], chain, [*chain[1:], ""], strict=False)
        chain = []
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _attributes(constant)
