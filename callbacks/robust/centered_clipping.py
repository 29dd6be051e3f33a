"""CenteredClipping: uploads count by their difference from the last aggregate, which is clipped."""

from dataclasses import dataclass

import torch
from torch import Tensor

from flcog.callbacks.robust.parts import distances_to
from flcog.core.checks import at_least, positive
from flcog.core.types import Slot
from flcog.method import UploadAggregator, UploadMatrix


@dataclass(frozen=True)
class CenteredClipping(UploadAggregator):
    """Moves from the last round's aggregate v towards the uploads, and clips the distance to each of them.

    ::

        v <- v + sum_k p_k (u_k - v) min(1, radius / ||u_k - v||)      steps times

    p_k are the aggregation weights. An attacker moves the aggregate by at most ``radius`` p_k in a step. The last aggregate is the
    server's state, and 0 before the first round; it is 0 again if other methods begin or end to send messages.

    Karimireddy et al., Learning from History for Byzantine Robust Optimization, ICML 2021, https://arxiv.org/abs/2012.10333. The updates
    of clients with ``WorkerMomentum`` change little between rounds, which the paper assumes.

    Args:
        radius: > 0, in the unit of the updates.
        steps: at least 1.

    Example:
        >>> rows = UploadMatrix(torch.tensor([[1.0], [1.0], [90.0]]), torch.full((3,), 1 / 3))
        >>> CenteredClipping(radius=1.5, steps=1).combine(rows, {})[0]
        tensor([1.1667])
    """

    radius: float = 10.0
    steps: int = 3

    def __post_init__(self) -> None:
        super().__post_init__()
        positive(self, "radius")
        at_least(self, 1, "steps")

    def combine(self, uploads: UploadMatrix, server: Slot) -> tuple[Tensor, Slot]:
        center = torch.zeros_like(uploads.values[0])
        if "last" in server and server["last"].shape == center.shape:
            center = server["last"]
        for _ in range(self.steps):
            lengths = distances_to(center, uploads.values).clamp(min=1e-30)
            weights = uploads.weights * (self.radius / lengths).clamp(max=1.0)
            center = (1 - weights.sum()) * center + uploads._replace(weights=weights).mean()
        return center, {"last": center}
