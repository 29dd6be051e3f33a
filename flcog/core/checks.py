"""One sentence for a hyper-parameter out of its range, the same for every method."""

import math
from typing import Any


def at_least(owner: Any, least: float, *fields: str) -> None:
    """Refuse values below ``least``, and NaN. None, where a field allows it, stands for a default and passes.

    >>> from types import SimpleNamespace
    >>> at_least(SimpleNamespace(name="FedProx", mu=-0.5), 0, "mu")
    Traceback (most recent call last):
    ValueError: FedProx: mu must be at least 0; got -0.5
    """
    for field in fields:
        value = getattr(owner, field)
        if value is not None and not value >= least:
            raise ValueError(f"{_name(owner)}: {field} must be at least {least}{_or_null(owner, field)}; got {value}")


def positive(owner: Any, *fields: str) -> None:
    """Refuse numbers that are not above 0. None passes, and so do schedules."""
    for field in fields:
        value = getattr(owner, field)
        if isinstance(value, float | int) and not value > 0:
            raise ValueError(f"{_name(owner)}: {field} must be positive{_or_null(owner, field)}; got {value}")


def positive_and_finite(owner: Any, *fields: str) -> None:
    """Refuse numbers that are not above 0, and infinity."""
    for field in fields:
        value = getattr(owner, field)
        if not 0 < value < math.inf:
            raise ValueError(f"{_name(owner)}: {field} must be positive and finite; got {value}")


def below_one(owner: Any, *fields: str) -> None:
    """Refuse values outside [0, 1): momenta, and the chance of a thing that may not be certain."""
    for field in fields:
        value = getattr(owner, field)
        if not 0 <= value < 1:
            raise ValueError(f"{_name(owner)}: {field} must lie in [0, 1); got {value}")


def seed(owner: Any, field: str) -> None:
    """Refuse seeds that numpy takes none of, and those of which only the last 64 bits would count."""
    value = getattr(owner, field)
    if not 0 <= value < 1 << 64:
        raise ValueError(f"{_name(owner)}: {field} must lie in [0, {1 << 64}), 64 bits; got {value}")


def one_of(owner: Any, field: str, *allowed: str) -> None:
    """Refuse words that are none of the allowed."""
    value = getattr(owner, field)
    if value not in allowed:
        raise ValueError(f"{_name(owner)}: {field} must be {', '.join(allowed[:-1])} or {allowed[-1]}; got {value!r}")


def _name(owner: Any) -> str:
    return getattr(owner, "name", None) or type(owner).__name__  # Lightning's own name of a datamodule is None


def _or_null(owner: Any, field: str) -> str:
    return ", or null" if getattr(type(owner), field, 0) is None else ""
