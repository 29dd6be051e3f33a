"""Types of options in users' words, for error messages."""

import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Union, get_args, get_origin

import torch

WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "text", type(None): "null"}


def wanted(hint: Any) -> str:
    """Describe a type in users' words.

    >>> wanted(int | None), wanted(Literal["raise", "drop"]), wanted(list[float])
    ('a whole number or null', 'raise or drop', 'a list (each a number)')
    """
    origin, inner = get_origin(hint), get_args(hint)
    if hint in WORDS:
        return WORDS[hint]
    if origin is Literal:
        return " or ".join([", ".join(map(str, inner[:-1])), str(inner[-1])] if len(inner) > 1 else [str(inner[0])])
    if origin in (Union, types.UnionType):
        return " or ".join(dict.fromkeys(wanted(each) for each in inner if each is not torch.Tensor))
    if origin in (list, tuple, set, Sequence):
        kinds = dict.fromkeys(wanted(each) for each in inner if each is not Ellipsis)
        return "a list" + (f" (each {' or '.join(kinds)})" if kinds else "")
    if origin in (dict, Mapping) or hint is dict:
        return "a mapping"
    if origin is Callable:
        return wanted(inner[-1])
    if not isinstance(hint, type):
        return str(hint)
    return f"the class path of a{'n' if hint.__name__[0] in 'AEIOU' else ''} {hint.__name__}"


def classes_in(hint: Any) -> list[type]:
    """Return the classes that a class path may name."""
    if isinstance(hint, type) and not get_args(hint):
        return [] if hint in WORDS or hint is torch.Tensor else [hint]
    if get_origin(hint) is Callable:
        return classes_in(get_args(hint)[-1])
    return [leaf for each in get_args(hint) for leaf in classes_in(each)] if get_origin(hint) is not Literal else []


def takes_words(hint: Any) -> bool:
    """Whether a number or a word would do."""
    return any(each in (int, float, bool, str) or get_origin(each) is Literal for each in get_args(hint))
