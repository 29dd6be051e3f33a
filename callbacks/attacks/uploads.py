"""SignFlip and GaussianAttack: attackers send something else than they have learnt."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import count

import torch
from torch import Generator, Tensor

from flcog.callbacks.clip_update import is_float
from flcog.callbacks.parts.noise import draw_key, normal
from flcog.core.checks import option
from flcog.core.types import Slot
from flcog.method import Attack, ClientView, Context, Envelope
from flcog.wire.envelope import changes_of, map_fields


def altered(envelope: Envelope, ctx: Context, change: Callable[[Tensor, int], Tensor]) -> Envelope:
    """The envelope after the replacement of an attacker's floating-point changes and messages.

    >>> from flcog.method import GlobalModel
    >>> context = Context(GlobalModel({}, {}), {}, {}, {"attacks": torch.tensor(True)}, {}, {}, 0, 1, None, None)
    >>> altered(Envelope({"w": torch.ones(2)}, {}), context, lambda change, place: -change).delta["w"]
    tensor([-1., -1.])
    """
    numbers = count()

    def replaced(value: Tensor) -> Tensor:
        if not is_float(value):
            return value
        return torch.where(ctx.draws["attacks"], change(value, next(numbers)), value)

    received = ctx.received.buffers
    floats = {name: value for name, value in envelope.buffers.items() if value.is_floating_point()}
    new = map_fields(replaced, envelope._replace(buffers=changes_of(floats, received)))
    # An honest client's buffers must stay the very same, and subtracting and adding would round them.
    buffers = {name: torch.where(ctx.draws["attacks"], received[name] + new.buffers[name], floats[name]) for name in floats}
    return new._replace(buffers={**envelope.buffers, **buffers})


@dataclass(frozen=True)
class SignFlip(Attack):
    """Lets attackers train honestly and send the opposite of all changes and messages.

    ::

        u_k <- -u_k

    Buffers move by the opposite of their change, too. Whole numbers stay. Karimireddy et al., Byzantine-Robust Learning on Heterogeneous
    Datasets via Bucketing, ICLR 2022, https://arxiv.org/abs/2006.09365, call it bit flipping.
    """

    def send(self, envelope: Envelope, ctx: Context) -> tuple[Envelope, Slot]:
        return altered(envelope, ctx, lambda change, place: -change), ctx.state


@dataclass(frozen=True)
class GaussianAttack(Attack):
    """Lets attackers send Gaussian noise in the place of all changes and messages.

    ::

        u_k ~ N(0, std^2 I)

    Blanchard et al., Machine Learning with Adversaries: Byzantine Tolerant Gradient Descent, NeurIPS 2017,
    https://arxiv.org/abs/1703.02757, take a standard deviation of 200.

    Args:
        std: of each number, > 0.
    """

    std: float = option(1.0, "> 0")

    def draw(self, rng: Generator, client: ClientView) -> Slot:
        return super().draw(rng, client) | {"key": draw_key(rng)}

    def send(self, envelope: Envelope, ctx: Context) -> tuple[Envelope, Slot]:
        def noise(change: Tensor, place: int) -> Tensor:
            return self.std * normal(ctx.draws["key"], 0, tuple(change.shape), place).to(change.dtype)

        return altered(envelope, ctx, noise), ctx.state
