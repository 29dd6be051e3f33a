"""ClipUpdate: bounds the norm of everything that a client sends."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from flcog.core.checks import option
from flcog.core.precision import number_dtype
from flcog.core.types import Params, Slot
from flcog.method import Context, Stage
from flcog.method.stage import Kind
from flcog.wire.envelope import Envelope, changes_of, map_fields


@dataclass(frozen=True)
class ClipUpdate(Stage):
    """Shortens each client's envelope u, one vector of all its changes and messages, to a norm of at most ``norm``.

    ::

        u <- u min(1, norm / ||u||)

    The vector consists of the change of the model, the change of BatchNorm's statistics from the received ones, and the
    messages of all methods, such as SCAFFOLD's. One factor shortens them all. Whole numbers pass unchanged. A client's
    measurements, such as its training loss, do not belong to the vector.

    McMahan et al., Learning Differentially Private Recurrent Language Models, ICLR 2018, https://arxiv.org/abs/1710.06963 ("flat
    clipping").

    Args:
        norm: the bound, > 0.

    Example:
        >>> ClipUpdate(norm=0.5).kind
        'bound'
    """

    norm: float = option(1.0, "> 0")

    kind: ClassVar[Kind] = "bound"

    def send(self, envelope: Envelope, ctx: Context) -> tuple[Envelope, Slot]:
        factor = clip_factor(changes(envelope, ctx.received.buffers), self.norm)

        def shortened(value: Tensor) -> Tensor:
            return factor.to(value.dtype) * value if is_float(value) else value

        clipped = map_fields(shortened, envelope._replace(buffers={}))
        # A factor of 1 must return the very same statistics, which subtracting and adding would round.
        moved = {name: shortened(value) for name, value in changes_of(envelope.buffers, ctx.received.buffers).items()}
        buffers = {
            name: torch.where(factor < 1, ctx.received.buffers[name] + moved[name], value) if is_float(value) else value
            for name, value in envelope.buffers.items()
        }
        return clipped._replace(buffers=buffers), ctx.state


def changes(envelope: Envelope, received_buffers: Params) -> list[Tensor]:
    """The floating-point tensors of an envelope, each once, with buffers replaced by their change."""
    found: list[Tensor] = []

    def collect(value: Tensor) -> Tensor:
        if is_float(value):
            found.append(value)
        return value

    map_fields(collect, envelope._replace(buffers=changes_of(envelope.buffers, received_buffers)))
    return found


def clip_factor(values: list[Tensor], norm: float) -> Tensor:
    """The factor that shortens tensors, taken together as one vector, to a norm of at most ``norm``.

    >>> clip_factor([torch.tensor([3.0]), torch.tensor([4.0])], 1.0)
    tensor(0.2000)
    """
    if not values:
        return torch.ones(())
    squares = [value.to(number_dtype(value.dtype)).square().sum().to(number_dtype()) for value in values]
    return (norm / torch.stack(squares).sum().sqrt().clamp(min=1e-30)).clamp(max=1.0)


def is_float(value: object) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()
