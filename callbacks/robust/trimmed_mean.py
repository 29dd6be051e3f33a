"""TrimmedMean: the mean of each number without its smallest and largest values."""

from dataclasses import dataclass

from torch import Tensor

from flcog.callbacks.robust.parts import ToleratesAttackers, by_columns, weighted_mean
from flcog.core.types import Slot
from flcog.method import UploadAggregator, UploadMatrix


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
