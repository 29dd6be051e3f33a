"""Bulyan: repeated Krum, and then a trimmed mean around the median."""

from dataclasses import dataclass

import torch
from torch import Tensor

from flcog.callbacks.robust.coordinate_median import weighted_median
from flcog.callbacks.robust.krum import scores
from flcog.callbacks.robust.parts import ToleratesAttackers, by_columns, distances, weighted_mean
from flcog.core.types import Slot
from flcog.method import UploadAggregator, UploadMatrix


@dataclass(frozen=True)
class Bulyan(ToleratesAttackers, UploadAggregator):
    """Selects n - 2 f uploads by repeated Krum, and averages for each number the n - 4 f selected values nearest their median.

    ::

        u[j] = sum_k p_k u_k[j] / sum_k p_k      over the n - 4 f selected clients with the smallest |u_k[j] - median[j]|

    Krum alone bounds the distance between whole updates, and an attacker can hide a large change of one number in it. The selected
    clients count equally in the median, and by their aggregation weights in the mean.

    Mhamdi et al., The Hidden Vulnerability of Distributed Learning in Byzantium, ICML 2018, https://arxiv.org/abs/1802.07927.

    Args:
        f: the largest number of attackers in a round, at least 0. A round, or the buckets of a round, must have 4 f + 3 uploads.

    Example:
        >>> rows = UploadMatrix(torch.tensor([[1.0], [2.0], [3.0], [4.0], [5.0], [6.0], [90.0]]), torch.full((7,), 1 / 7))
        >>> Bulyan(f=1).combine(rows, {})[0]
        tensor([3.])
    """

    @property
    def least(self) -> int:
        return 4 * self.f + 3

    def combine(self, uploads: UploadMatrix, server: Slot) -> tuple[Tensor, Slot]:
        count = len(uploads.values)
        between, left = distances(uploads.values), list(range(count))
        while len(left) > 2 * self.f:
            part = torch.tensor(left, device=between.device)
            left.pop(int(scores(between[part][:, part], self.f).argmin()) if len(left) > 1 else 0)
        chosen = torch.tensor([row for row in range(count) if row not in left], device=between.device)
        values, weights = uploads.values[chosen], uploads.weights[chosen]
        equal = torch.full_like(weights, 1 / len(weights))

        def near_median(part: Tensor) -> Tensor:
            away = (part - weighted_median(part, equal)).abs()
            nearest = away.argsort(dim=0, stable=True)[: count - 4 * self.f]
            return weighted_mean(part.gather(0, nearest), weights[nearest])

        return by_columns(near_median, values), server
