"""Find NaN and infinite values in models, which an evaluation would score as if they predicted the first class."""

import torch
from torch import Tensor

from flcog.core.trees import Tree, leaves
from flcog.core.types import Params
from flcog.method.method import Method


def is_finite(params: Tree) -> bool:
    """Whether no parameter has a NaN or an infinity."""
    floats = [value for value in leaves(params) if isinstance(value, Tensor) and value.is_floating_point()]
    if not floats:
        return True
    norm = torch.stack([norm.float() for norm in torch._foreach_norm(floats)]).norm()
    # A norm may overflow although all values are finite.
    return bool(torch.isfinite(norm)) or all(bool(torch.isfinite(value).all()) for value in floats)


def check_finite(method: Method, hook: str, values: Params, given: Params, of: str = "") -> Params:
    """Refuse parameters for an evaluation that a hook has made NaN or infinite.

    Args:
        method: whose hook has returned the values.
        hook: its name.
        values: the returned values.
        given: the parameters that it was given. If they are not finite, the hook is not the cause.
        of: the client, for messages.
    """
    if not is_finite(values) and is_finite(given):
        name = next(name for name, value in dict(values).items() if not is_finite(value))
        raise ValueError(
            f"{method.name}.{hook} returned {name}{of} with NaN or infinite values, though the parameters that it was given are finite: "
            "correct the hook, or lower the step sizes that it depends on"
        )
    return values
