"""InnerProductManipulation: attackers send the opposite of the honest mean."""

from dataclasses import dataclass

from torch import Tensor

from flcog.callbacks.attacks.parts import AttackerView, OmniscientAttack
from flcog.core.checks import positive
from flcog.core.types import Slot


@dataclass(frozen=True)
class InnerProductManipulation(OmniscientAttack):
    """Lets attackers send a multiple of the opposite of the honest mean.

    ::

        u = -epsilon mean

    A small epsilon slows training and is hard to detect; a large one turns the mean around. Omniscient: the attackers know the uploads of
    all honest clients.

    Xie et al., Fall of Empires: Breaking Byzantine-Tolerant SGD by Inner Product Manipulation, UAI 2019, https://arxiv.org/abs/1903.03936,
    use 0.1 and 100.

    Args:
        epsilon: > 0.
        optimised: whether attackers choose the strength from 0.1 to 102.4 that moves the server's result farthest, in the place of
            ``epsilon``. They then know the rule, too, and it is computed eleven times more in each round.

    Example:
        >>> InnerProductManipulation(epsilon=100.0, count=5).epsilon
        100.0
    """

    epsilon: float = 0.1
    optimised: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        positive(self, "epsilon")

    def forge(self, view: AttackerView, server: Slot) -> tuple[Tensor, Slot]:
        mean = view.honest.mean(0)
        return (view.strongest(lambda epsilon: -epsilon * mean) if self.optimised else -self.epsilon * mean), server
