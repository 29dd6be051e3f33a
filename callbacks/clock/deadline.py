"""Deadline: a round ends after a fixed time, and clients that are late do not count."""

from collections.abc import Mapping
from dataclasses import dataclass

from flcog.core.checks import positive_and_finite
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

    seconds: float = 60.0

    def __post_init__(self) -> None:
        super().__post_init__()
        positive_and_finite(self, "seconds")

    def close(self, finishes: Mapping[int, float], count: int) -> RoundEnd:
        return RoundEnd([k for k, time in finishes.items() if time <= self.seconds], min(self.seconds, max(finishes.values())))
