"""SignFlip: attackers send the opposite of their updates."""

from dataclasses import dataclass

from flcog.callbacks.attacks.parts import altered
from flcog.core.types import Slot
from flcog.method import Attack, Context, Envelope


@dataclass(frozen=True)
class SignFlip(Attack):
    """Lets attackers train honestly and send the opposite of all changes and messages.

    ::

        u_k <- -u_k

    Buffers move by the opposite of their change, too. Whole numbers stay. Karimireddy et al., Byzantine-Robust Learning on Heterogeneous
    Datasets via Bucketing, ICLR 2022, https://arxiv.org/abs/2006.09365, call it bit flipping.

    Example:
        >>> SignFlip(fraction=0.3).kind
        'alter'
    """

    def send(self, envelope: Envelope, ctx: Context) -> tuple[Envelope, Slot]:
        return altered(envelope, ctx, lambda change, place: -change), ctx.state
