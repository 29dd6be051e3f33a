"""Bounds on everything that a client sends: one norm for each sender, the model's own norm flat or per layer."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from flcog.callbacks.clip_update import is_float
from flcog.core.precision import number_dtype
from flcog.core.types import Params
from flcog.method import Envelope
from flcog.wire.envelope import changes_of

Bound = Callable[[str], float]
"""The bound of a sender: ``model``, ``buffers``, or a method's name."""


def layers(names: Sequence[str], per_layer: bool) -> list[list[str]]:
    """The names of parameters in groups, each with a bound of its own: one group, or one for each layer.

    >>> layers(["a.weight", "a.bias", "b.weight"], per_layer=True)
    [['a.weight', 'a.bias'], ['b.weight']]
    """
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(name.rpartition(".")[0] if per_layer else "", []).append(name)
    return list(groups.values())


def shorten(tree: Any, bound: Tensor | float) -> tuple[Any, Tensor]:
    """The floating-point tensors of a tree, shortened as one vector to this norm, and the vector's norm before. Others become 0.

    Tensors of 16 bits round the factor and each product by half a unit in the last place, so the target is one unit below the bound.
    """
    values = [value for value in pytree.tree_leaves(tree) if is_float(value)]
    if not values:
        return pytree.tree_map(torch.zeros_like, tree), torch.zeros(())
    norm = torch.stack([value.to(number_dtype(value.dtype)).square().sum().to(number_dtype()) for value in values]).sum().sqrt()
    unit = max(torch.finfo(value.dtype).eps for value in values)
    allowed = bound * (1 - unit) if unit > torch.finfo(torch.float32).eps else bound
    factor = (allowed / norm.clamp(min=1e-30)).clamp(max=1.0)
    return pytree.tree_map(
        lambda value: factor.to(value.dtype) * value if is_float(value) else torch.zeros_like(value), tree
    ), norm


def clip(
    envelope: Envelope, received: Params, bound: Bound, per_layer: bool = False, scale: Tensor | None = None
) -> tuple[Envelope, Tensor]:
    """A client's bounded envelope, and for each group of the model's parameters whether it was within its bound, as 1 or 0. *Pure.*

    The squares of the bounds of the model's layers sum to the square of the model's bound. ``scale`` has factors on these bounds.
    """
    groups, delta, within = layers(list(envelope.delta), per_layer), dict(envelope.delta), []
    for i, names in enumerate(groups):
        limit = bound("model") / len(groups) ** 0.5 * (1.0 if scale is None else scale[i])
        part, norm = shorten({name: envelope.delta[name] for name in names}, limit)
        delta |= part
        within.append((norm <= limit).to(number_dtype()))
    if narrow := next((name for name, value in envelope.buffers.items() if is_float(value) and value.element_size() < 4), None):
        raise ValueError(
            f"{narrow} has {envelope.buffers[narrow].element_size() * 8} bits, and a bounded change of it is rounded beyond its bound: "
            "set trainer.precision to 32-true or a mixed precision, or use GroupNorm"
        )
    moved = changes_of({name: value for name, value in envelope.buffers.items() if is_float(value)}, received)
    allowed, _ = shorten(moved, bound("buffers"))
    # Buffers within the bound stay the very same, which subtracting and adding would round. Whole numbers stay the received ones.
    buffers = {
        name: torch.where(allowed[name] == moved[name], value, received[name] + allowed[name])
        if is_float(value)
        else received[name]
        for name, value in envelope.buffers.items()
    }
    mean, total = dict(envelope.mean), dict(envelope.sum)
    for sender in mean:
        (mean[sender], total[sender]), _ = shorten((mean[sender], total[sender]), bound(sender))
    return envelope._replace(delta=delta, buffers=buffers, mean=mean, sum=total), torch.stack(within) if within else torch.ones(0)


def total_bound(envelope: Envelope, bound: Bound, scale: Tensor | None = None) -> float:
    """The largest norm of all that a client adds to the sums: the root of the sum of the squared bounds of the senders in it."""
    square = bound("model") ** 2 * (1.0 if scale is None else float(scale.square().mean())) if envelope.delta else 0.0
    if any(map(is_float, envelope.buffers.values())):
        square += bound("buffers") ** 2
    senders = [s for s in envelope.mean if any(map(is_float, pytree.tree_leaves((envelope.mean[s], envelope.sum[s]))))]
    return float((square + sum(bound(sender) ** 2 for sender in senders)) ** 0.5)


def with_message(envelope: Envelope, sender: str, message: Mapping[str, Tensor]) -> Envelope:
    """The envelope with another message of a sender, to be added up without weights."""
    return envelope._replace(mean={**envelope.mean, sender: {}}, sum={**envelope.sum, sender: message})


def without_messages(envelope: Envelope, sender: str) -> Envelope:
    """The envelope without the messages of a sender."""
    mean, total = ({name: value for name, value in part.items() if name != sender} for part in (envelope.mean, envelope.sum))
    return envelope._replace(mean=mean, sum=total)
