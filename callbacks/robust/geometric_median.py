"""GeometricMedian: the point with the smallest sum of distances to all uploads."""

from dataclasses import dataclass

import torch
from torch import Tensor

from flcog.callbacks.robust.parts import distances_to
from flcog.core.checks import at_least, positive
from flcog.core.types import Slot
from flcog.method import UploadAggregator, UploadMatrix


@dataclass(frozen=True)
class GeometricMedian(UploadAggregator):
    """Approximates the geometric median of the uploads by the smoothed algorithm of Weiszfeld, which starts at 0.

    ::

        z <- sum_k b_k u_k / sum_k b_k,   b_k = p_k / max(nu, ||z - u_k||)

    p_k are the aggregation weights. Less than half of the weight cannot move the median arbitrarily far.

    Pillutla et al., Robust Aggregation for Federated Learning, IEEE Transactions on Signal Processing 2022,
    https://arxiv.org/abs/1912.13445 (RFA). Karimireddy et al. 2022, https://arxiv.org/abs/2006.09365, use the values below.

    Args:
        steps: of the algorithm, at least 1.
        nu: the smallest distance that counts, > 0, in the unit of the updates.

    Example:
        >>> rows = UploadMatrix(torch.tensor([[1.0], [1.0], [90.0]]), torch.full((3,), 1 / 3))
        >>> GeometricMedian(nu=1e-6).combine(rows, {})[0].round(decimals=2)
        tensor([1.])
    """

    steps: int = 8
    nu: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, 1, "steps")
        positive(self, "nu")

    def combine(self, uploads: UploadMatrix, server: Slot) -> tuple[Tensor, Slot]:
        median = torch.zeros_like(uploads.values[0])
        for _ in range(self.steps):
            weights = uploads.weights / distances_to(median, uploads.values).clamp(min=self.nu)
            median = uploads._replace(weights=weights / weights.sum()).mean()
        return median, server
