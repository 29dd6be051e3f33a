"""MinMax: attackers move as far as they can without being the farthest apart."""

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from flcog.callbacks.attacks.parts import AttackerView, OmniscientAttack
from flcog.callbacks.robust.parts import distances
from flcog.core.checks import one_of
from flcog.core.types import Slot

DIRECTIONS = ("std", "unit", "sign")


@dataclass(frozen=True)
class MinMax(OmniscientAttack):
    """Lets attackers move the honest mean as far as possible, at most as far from any honest update as two of those are apart.

    ::

        u = mean + gamma p,   gamma = max { gamma : max_i ||u - u_i|| <= max_{i,j} ||u_i - u_j|| }

    The direction p is -std of the honest updates, the unit vector -mean / ||mean||, or -sign(mean). gamma solves a quadratic equation for
    each honest update; the paper searches it. Omniscient: the attackers know the uploads of all honest clients.

    Shejwalkar and Houmansadr, Manipulating the Byzantine: Optimizing Model Poisoning Attacks and Defenses for Federated Learning,
    NDSS 2021, https://doi.org/10.14722/ndss.2021.24498.

    Args:
        direction: ``std``, ``unit`` or ``sign``.

    Example:
        >>> MinMax(direction="unit").direction
        'unit'
    """

    direction: Literal["std", "unit", "sign"] = "std"

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of(self, DIRECTIONS, "direction")

    def forge(self, view: AttackerView, server: Slot) -> tuple[Tensor, Slot]:
        mean = view.honest.mean(0)
        if self.direction == "std":
            p = -view.std()
        elif self.direction == "unit":
            p = -mean / mean.norm().clamp(min=1e-30)
        else:
            p = -mean.sign()
        apart = mean - view.honest
        square, half, rest = p.square().sum(), apart @ p, apart.square().sum(1) - distances(view.honest).max().square()
        gamma = ((half.square() - square * rest).clamp(min=0).sqrt() - half) / square.clamp(min=1e-30)
        return mean + gamma.min() * p, server
