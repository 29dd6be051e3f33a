"""Deadline and OverSelect: a round ends before all clients have finished."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil

from flcog.core.checks import option
from flcog.method import Cutoff, RoundEnd


@dataclass(frozen=True)
class Deadline(Cutoff):
    """Ends a round after some simulated seconds. Late clients' uploads do not count, and these clients keep their old states.

    ::

        S <- {k in S : t_k <= seconds}

    The round ends earlier if all clients have finished earlier. Late clients have downloaded the model; their uploads cost no bytes. If
    all clients are late, the model stays as it is. The mean change favours fast clients, also with unbiased weights. The column
    ``clients/late`` has their number. :class:`~flcog.callbacks.SystemModel` tells the times; without it, every local step takes a second
    and nothing else takes time. Bonawitz et al., Towards Federated Learning at Scale: System Design, MLSys 2019,
    https://arxiv.org/abs/1902.01046.

    Args:
        seconds: counted from the moment when the server sends the model, > 0.

    Example:
        >>> Deadline(seconds=10).close({3: 4.0, 5: 12.0}, count=2)
        RoundEnd(clients=[3], seconds=10)
    """

    seconds: float = option(60.0, "(0, inf)")

    def close(self, finishes: Mapping[int, float], count: int) -> RoundEnd:
        return RoundEnd([k for k, time in finishes.items() if time <= self.seconds], min(self.seconds, max(finishes.values())))


@dataclass(frozen=True)
class OverSelect(Cutoff):
    """Selects more clients than a round needs, by any selection, and ends the round when enough of them have finished.

    ::

        |S| = ceil(factor m),   S <- the m clients of S with the smallest t_k

    m is ``trainer.clients_per_round``, and clients that finish at the same time are in random order. The other clients have downloaded the
    model; their uploads cost no bytes and do not count, and their states do not change. The mean change favours fast clients, also with
    unbiased weights. :class:`~flcog.callbacks.SystemModel` tells the times; without it, every local step takes a second and nothing else
    takes time. FedScale (Lai et al., ICML 2022, https://arxiv.org/abs/2105.11367) uses the factor 1.3.

    Args:
        factor: at least 1.

    Example:
        >>> OverSelect(factor=1.5).close({2: 7.0, 3: 4.0, 5: 12.0}, count=2)
        RoundEnd(clients=[3, 2], seconds=7.0)
    """

    factor: float = option(1.3, ">= 1")

    def asked(self, count: int) -> int:
        return ceil(round(self.factor * count, 9))

    def close(self, finishes: Mapping[int, float], count: int) -> RoundEnd:
        first = sorted(finishes, key=finishes.__getitem__)[:count]
        return RoundEnd(first, finishes[first[-1]])
