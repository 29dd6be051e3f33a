"""GaussianAttack: attackers send noise."""

from dataclasses import dataclass

from torch import Generator, Tensor

from flcog.callbacks.attacks.parts import altered
from flcog.callbacks.parts.noise import draw_key, normal
from flcog.core.checks import positive
from flcog.core.types import Slot
from flcog.method import Attack, ClientView, Context, Envelope


@dataclass(frozen=True)
class GaussianAttack(Attack):
    """Lets attackers send Gaussian noise in the place of all changes and messages.

    ::

        u_k ~ N(0, std^2 I)

    Blanchard et al., Machine Learning with Adversaries: Byzantine Tolerant Gradient Descent, NeurIPS 2017,
    https://arxiv.org/abs/1703.02757, take a standard deviation of 200.

    Args:
        std: of each number, > 0.

    Example:
        >>> GaussianAttack(std=200.0, count=3).std
        200.0
    """

    std: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        positive(self, "std")

    def draw(self, rng: Generator, client: ClientView) -> Slot:
        return super().draw(rng, client) | {"key": draw_key(rng)}

    def send(self, envelope: Envelope, ctx: Context) -> tuple[Envelope, Slot]:
        def noise(change: Tensor, place: int) -> Tensor:
            return self.std * normal(ctx.draws["key"], 0, tuple(change.shape), place).to(change.dtype)

        return altered(envelope, ctx, noise), ctx.state
