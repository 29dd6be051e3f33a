"""Range checks of settings, with the same error messages for every method, model and data set.

A check takes the object whose settings it checks (None for a plain function), then names of its attributes, or the values as
keywords if the object does not have them yet. None means a default and passes. ``hint`` follows the value in the message and
suggests a better one.

A method's hyper-parameters have their ranges beside their defaults: see :func:`option`.
"""

import dataclasses
import math
from collections.abc import Callable, Collection, Sequence
from numbers import Integral
from typing import Any, Literal, get_args, get_origin


def option(default: Any, allowed: str) -> Any:
    """A field of a dataclass with a default, and the range that :func:`check_options` demands of its value, or of each item of it.

    ``allowed`` is ``">= 0"`` or another least value, ``"> 0"``, or an interval such as ``"[0, 1)"``. None means a default and passes.
    """
    return dataclasses.field(default=default, metadata={"allowed": allowed})


def check_options(owner: Any) -> None:
    """Refuse values outside the ranges of :func:`option`, and words that a field's ``Literal`` does not list.

    >>> from flcog.callbacks import FedProx
    >>> FedProx(mu=-0.5)
    Traceback (most recent call last):
    ValueError: FedProx: mu must be at least 0; got -0.5
    """
    for each in dataclasses.fields(owner):
        allowed, value = each.metadata.get("allowed"), getattr(owner, each.name)
        if get_origin(each.type) is Literal:
            one_of(owner, get_args(each.type), each.name)
        elif allowed in ("> 0", "(0, inf)"):
            (positive if allowed == "> 0" else positive_and_finite)(owner, each.name)
        elif allowed is not None and allowed.startswith(">= "):
            check = all_at_least if isinstance(value, Sequence) and not isinstance(value, str) else at_least
            check(owner, int(allowed[3:]), each.name)
        elif allowed is not None:
            within(owner, allowed, each.name)


def at_least(owner: Any, least: float, *fields: str, hint: str = "", **values: float | None) -> None:
    """Refuse values below ``least``, and NaN.

    >>> from types import SimpleNamespace
    >>> at_least(SimpleNamespace(name="FedProx", mu=-0.5), 0, "mu")
    Traceback (most recent call last):
    ValueError: FedProx: mu must be at least 0; got -0.5
    """
    _check(lambda value: value >= least, f"be at least {least}", owner, fields, values, hint)


def whole(owner: Any, least: int, *fields: str, hint: str = "", **values: int | None) -> None:
    """Refuse values that are no whole numbers, such as 10.0 and "10", and values below ``least``."""
    wanted = f"be a whole number of at least {least}"
    _check(lambda value: isinstance(value, Integral) and int(value) >= least, wanted, owner, fields, values, hint)


def all_at_least(owner: Any, least: float, *fields: str, hint: str = "", **values: Sequence[float] | None) -> None:
    """Refuse empty sequences, and sequences with a value below ``least``."""
    wanted = f"be one or more numbers of at least {least}"
    _check(lambda value: len(value) > 0 and all(item >= least for item in value), wanted, owner, fields, values, hint)


def positive(owner: Any, *fields: str, hint: str = "", **values: Any) -> None:
    """Refuse numbers that are not above 0. Schedules pass."""
    _check(lambda value: not isinstance(value, float | int) or value > 0, "be positive", owner, fields, values, hint)


def positive_and_finite(owner: Any, *fields: str, hint: str = "", **values: float | None) -> None:
    """Refuse numbers that are not above 0, and infinity."""
    _check(lambda value: 0 < value < math.inf, "be positive and finite", owner, fields, values, hint)


def within(owner: Any, interval: str, *fields: str, hint: str = "", **values: float | None) -> None:
    """Refuse values outside an interval, in mathematical notation: ``[0, 1)`` contains 0 but not 1.

    >>> within(None, "(0, 1]", share=0.0)
    Traceback (most recent call last):
    ValueError: share must lie in (0, 1]; got 0.0
    """
    low, high = map(float, interval[1:-1].split(","))

    def inside(value: float) -> bool:
        return (low <= value if interval[0] == "[" else low < value) and (value <= high if interval[-1] == "]" else value < high)

    _check(inside, f"lie in {interval}", owner, fields, values, hint)


def count_or_share(owner: Any, interval: Literal["(0, 1]", "[0, 1]"], *fields: str, hint: str = "", **values: Any) -> None:
    """Refuse values that are neither a count nor a fraction in an interval. 1 is a count, and 1.0 a fraction."""
    least = 0 if interval[0] == "[" else 1

    def holds(value: Any) -> bool:
        whole = isinstance(value, Integral) and not isinstance(value, bool)
        return value >= least if whole else isinstance(value, float) and (0 < value <= 1 or value == least == 0)

    _check(holds, f"be a count ({least}, {least + 1}, ...) or a fraction in {interval}", owner, fields, values, hint)


def seed(owner: Any, field: str) -> None:
    """Refuse seeds that numpy does not accept, and seeds of more than 64 bits, because the further bits would be ignored."""
    _check(lambda value: 0 <= value < 1 << 64, f"lie in [0, {1 << 64}), 64 bits", owner, (field,), {}, "")


def one_of(owner: Any, allowed: Collection[Any], *fields: str, hint: str = "", **values: Any) -> None:
    """Refuse words that are not allowed."""
    *others, last = map(str, allowed)
    _check(lambda value: value in allowed, f"be {', '.join(others)} or {last}", owner, fields, values, hint)


def _check(
    holds: Callable[[Any], bool], wanted: str, owner: Any, fields: Sequence[str], values: dict[str, Any], hint: str
) -> None:
    for name, value in ({field: getattr(owner, field) for field in fields} | values).items():
        if value is not None and not _is_true(holds, value):
            got = repr(value) if isinstance(value, str) else value
            after = f": {hint}" if hint else ""
            raise ValueError(f"{_name(owner)}{name} must {wanted}{_or_null(owner, name)}; got {got}{after}")


def _is_true(holds: Callable[[Any], bool], value: Any) -> bool:
    """Whether a value passes. One of another type, such as a text for a number, does not."""
    try:
        return holds(value)
    except TypeError:
        return False


def _name(owner: Any) -> str:
    # Lightning's own name of a datamodule is None.
    return "" if owner is None else f"{getattr(owner, 'name', None) or type(owner).__name__}: "


def _or_null(owner: Any, field: str) -> str:
    return ", or null" if getattr(type(owner), field, 0) is None else ""
