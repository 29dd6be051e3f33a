"""ALittleIsEnough: attackers hide within the spread of the honest updates."""

from dataclasses import dataclass
from statistics import NormalDist

from torch import Tensor

from flcog.callbacks.attacks.parts import AttackerView, OmniscientAttack
from flcog.core.types import Slot


@dataclass(frozen=True)
class ALittleIsEnough(OmniscientAttack):
    """Lets attackers send the honest mean, moved by z standard deviations of the honest updates.

    ::

        u = mean - z std,   z = Phi^-1((n - f - s) / (n - f)),   s = floor(n / 2 + 1) - f

    The default z counts the n clients and f attackers of the round: the attackers and the s honest clients farthest away are a majority.
    Omniscient: the attackers know the uploads of all honest clients.

    Baruch et al., A Little Is Enough: Circumventing Defenses For Distributed Learning, NeurIPS 2019, https://arxiv.org/abs/1902.06156.

    Args:
        z: the number of standard deviations; None computes it.
        optimised: whether attackers choose the strength from 0.1 to 102.4 that moves the server's result farthest. They then know the
            rule, too, and it is computed eleven times more in each round.

    Example:
        >>> round(default_strength(25, 5), 3)
        0.253
    """

    z: float | None = None
    optimised: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.optimised and self.z is not None:
            raise ValueError(f"{self.name}: z must be null if optimised is true; got {self.z}")

    def forge(self, view: AttackerView, server: Slot) -> tuple[Tensor, Slot]:
        mean, std = view.honest.mean(0), view.std()
        if self.optimised:
            return view.strongest(lambda z: mean - z * std), server
        z = default_strength(len(view.honest) + view.count, view.count) if self.z is None else self.z
        return mean - z * std, server


def default_strength(clients: int, attackers: int) -> float:
    """The paper's z. It is 0 at least, and finite if attackers are the majority.

    Args:
        clients: n, of the round.
        attackers: f, of the round.
    """
    needed = max(1, clients // 2 + 1 - attackers)
    honest = clients - attackers
    return NormalDist().inv_cdf(max(0.5, (honest - needed) / honest))
