"""CoordinateMedian: the median of each number."""

from dataclasses import dataclass

from torch import Tensor

from flcog.callbacks.robust.parts import by_columns
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
    """The weighted median of each column.

    Args:
        values: [n, c].
        weights: of the rows; they sum to 1.
    """
    ordered, order = values.sort(dim=0)
    below = weights[order].cumsum(0)
    last = len(values) - 1
    low, high = ((below < 0.5 - TIE).sum(0).clamp(max=last), (below <= 0.5 + TIE).sum(0).clamp(max=last))
    return (ordered.gather(0, low.unsqueeze(0)) + ordered.gather(0, high.unsqueeze(0)))[0] / 2
