"""CoordinateMedian, TrimmedMean and GeometricMedian: rules that a minority cannot move far."""

from dataclasses import dataclass

import torch
from torch import Tensor

from flcog.callbacks.robust.parts import ToleratesAttackers, by_columns, distances_to, weighted_mean
from flcog.core.checks import option
from flcog.core.types import Slot
from flcog.method import UploadAggregator, UploadMatrix

TIE = 1e-9
"""A smaller distance of a sum of weights from one half is a tie, because weights are rounded."""


@dataclass(frozen=True)
class CoordinateMedian(UploadAggregator):
    """Takes the median of each number over the clients.

    ::

        u[j] = median_k u_k[j]

    Clients count by their aggregation weights: half of the weight lies on each side of the median, which is the middle between two
    values if several would do. With ``EqualWeights`` it is the usual median. An envelope's numbers are medians of different clients, so
    the result need not resemble any client's update.

    Yin et al., Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates, ICML 2018, https://arxiv.org/abs/1803.01498.

    Example:
        >>> import torch
        >>> rows = UploadMatrix(torch.tensor([[1.0], [2.0], [90.0]]), torch.full((3,), 1 / 3))
        >>> CoordinateMedian().combine(rows, {})[0]
        tensor([2.])
    """

    def combine(self, uploads: UploadMatrix, server: Slot) -> tuple[Tensor, Slot]:
        return by_columns(lambda part: weighted_median(part, uploads.weights), uploads.values), server


def weighted_median(values: Tensor, weights: Tensor) -> Tensor:
    """The weighted median of each column."""
    ordered, order = values.sort(dim=0)
    below = weights[order].cumsum(0)
    last = len(values) - 1
    low, high = ((below < 0.5 - TIE).sum(0).clamp(max=last), (below <= 0.5 + TIE).sum(0).clamp(max=last))
    return (ordered.gather(0, low.unsqueeze(0)) + ordered.gather(0, high.unsqueeze(0)))[0] / 2


@dataclass(frozen=True)
class TrimmedMean(ToleratesAttackers, UploadAggregator):
    """Leaves out the f smallest and the f largest values of each number, and takes the weighted mean of the others.

    ::

        u[j] = sum_k p_k u_k[j] / sum_k p_k      over the n - 2 f clients in the middle of the order of u_k[j]

    Yin et al., Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates, ICML 2018, https://arxiv.org/abs/1803.01498.
    The paper weighs all clients equally, which ``EqualWeights`` does. If all clients in the middle have the weight 0, they count equally.

    Args:
        f: the largest number of attackers in a round, at least 0 and below half of the uploads.

    Example:
        >>> import torch
        >>> rows = UploadMatrix(torch.tensor([[1.0], [2.0], [90.0]]), torch.full((3,), 1 / 3))
        >>> TrimmedMean(f=1).combine(rows, {})[0]
        tensor([2.])
    """

    def combine(self, uploads: UploadMatrix, server: Slot) -> tuple[Tensor, Slot]:
        kept = slice(self.f, len(uploads.values) - self.f)

        def mean(part: Tensor) -> Tensor:
            values, order = part.sort(dim=0)
            return weighted_mean(values[kept], uploads.weights[order[kept]])

        return by_columns(mean, uploads.values), server


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

    steps: int = option(8, ">= 1")
    nu: float = option(0.1, "> 0")

    def combine(self, uploads: UploadMatrix, server: Slot) -> tuple[Tensor, Slot]:
        median = torch.zeros_like(uploads.values[0])
        for _ in range(self.steps):
            weights = uploads.weights / distances_to(median, uploads.values).clamp(min=self.nu)
            median = uploads._replace(weights=weights / weights.sum()).mean()
        return median, server
