"""Parameters by their names: the head, and parts that an option chooses."""

import re
from collections.abc import Collection, Iterable

from torch import Tensor, nn

from flcog.core.types import Params
from flcog.method import Method

HEAD = r"(^|\.)head\."


def by_name(parts: str | Iterable[str], names: Iterable[str]) -> set[str]:
    """The names of the head, of the body, or that match a regular expression, or one of a list of these.

    >>> sorted(by_name("body", ["features.weight", "head.weight"]))
    ['features.weight']
    """
    each = [
        (HEAD if part in ("head", "body") else part, part == "body") for part in ([parts] if isinstance(parts, str) else parts)
    ]
    try:
        return {name for name in names if any(bool(re.search(pattern, name)) != other for pattern, other in each)}
    except re.error as error:
        raise ValueError(
            f"parts {parts!r} are no regular expressions ({error}): write '.*' where a file name would have '*'"
        ) from error


def check_some(option: str, parts: object, found: Collection[str], names: Iterable[str]) -> None:
    """Refuse parts that are none of the parameters."""
    if not any(name in found for name in names):
        raise ValueError(f"{option}={parts!r} matches none of the parameters' names: choose among {', '.join(names)}")


def head_weight(method: Method, params: Params | nn.Module) -> Tensor:
    """The weight of the model's linear head, [outputs, features]."""
    values = dict(params.named_parameters()) if isinstance(params, nn.Module) else params
    heads = [value for name, value in values.items() if re.search(HEAD + r"weight$", name)]
    if len(heads) != 1 or heads[0].ndim != 2:
        raise ValueError(f"{method.name} needs a network with a linear head, and this one has none: use one of flcog.models")
    return heads[0]
