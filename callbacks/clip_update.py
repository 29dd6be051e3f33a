"""ClipUpdate: bounds the norm of the change of the model that a client sends."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from flcog.core.checks import option
from flcog.core.precision import number_dtype
from flcog.core.types import Slot
from flcog.method import Context, Stage
from flcog.wire.envelope import Envelope


@dataclass(frozen=True)
class ClipUpdate(Stage):
    """Shortens each client's change D of the model's parameters, one vector, to a norm of at most ``norm``.

    ::

        D <- D min(1, norm / ||D||)

    The messages of methods and BatchNorm's statistics pass unchanged, so that the server's mean of SCAFFOLD's control variates stays
    the mean of the clients'. ``DPFedAvg`` bounds everything that a client sends.

    McMahan et al., Learning Differentially Private Recurrent Language Models, ICLR 2018, https://arxiv.org/abs/1710.06963 ("flat
    clipping").

    Args:
        norm: the bound, > 0.
    """

    norm: float = option(1.0, "> 0")

    kind = "bound"

    def send(self, envelope: Envelope, ctx: Context) -> tuple[Envelope, Slot]:
        factor = clip_factor(envelope.delta.values(), self.norm)
        return envelope._replace(
            delta={name: factor.to(value.dtype) * value for name, value in envelope.delta.items()}
        ), ctx.state


def clip_factor(values: Iterable[Tensor], norm: float) -> Tensor:
    """The factor that shortens tensors, taken together as one vector, to a norm of at most ``norm``.

    >>> clip_factor([torch.tensor([3.0]), torch.tensor([4.0])], 1.0)
    tensor(0.2000)
    """
    squares = [value.to(number_dtype(value.dtype)).square().sum().to(number_dtype()) for value in values]
    if not squares:
        return torch.ones(())
    return (norm / torch.stack(squares).sum().sqrt().clamp(min=1e-30)).clamp(max=1.0)


def is_float(value: object) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()
