"""Krum, MultiKrum and Bulyan: the uploads that have the nearest neighbours."""

from dataclasses import dataclass

import torch
from torch import Tensor

from flcog.callbacks.robust.parts import ToleratesAttackers, by_columns, counted, distances, weighted_mean
from flcog.core.checks import option
from flcog.core.types import Slot
from flcog.method import UploadAggregator, UploadMatrix


@dataclass(frozen=True)
class Krum(ToleratesAttackers, UploadAggregator):
    """Takes the upload with the smallest sum of squared distances to its n - f - 2 nearest neighbours.

    ::

        score(i) = sum_{j near i} ||u_i - u_j||^power,   u = u_i with the smallest score

    The global model follows one client, so a client with unusual data hardly ever counts.

    Blanchard et al., Machine Learning with Adversaries: Byzantine Tolerant Gradient Descent, NeurIPS 2017,
    https://arxiv.org/abs/1703.02757. The program of Karimireddy et al. 2022, https://arxiv.org/abs/2006.09365, squares the squares:
    ``power=4``.

    Args:
        f: the largest number of attackers in a round, at least 0. A round, or the buckets of a round, must have 2 f + 3 uploads.
        power: of the distances, at least 1; 2 in the paper.

    Example:
        >>> rows = UploadMatrix(torch.tensor([[1.0], [1.1], [1.15], [1.4], [90.0]]), torch.full((5,), 0.2))
        >>> Krum(f=1).combine(rows, {})[0]
        tensor([1.1000])
    """

    power: int = option(2, ">= 1")

    @property
    def least(self) -> int:
        return 2 * self.f + 3

    def combine(self, uploads: UploadMatrix, server: Slot) -> tuple[Tensor, Slot]:
        return uploads.values[scores(distances(uploads.values), self.f, self.power).argmin()], server


@dataclass(frozen=True)
class MultiKrum(ToleratesAttackers, UploadAggregator):
    """Takes the weighted mean of the uploads with the smallest scores of :class:`Krum`.

    ::

        u = sum_k p_k u_k / sum_k p_k      over the n - f clients with the smallest scores

    Blanchard et al., Machine Learning with Adversaries: Byzantine Tolerant Gradient Descent, NeurIPS 2017,
    https://arxiv.org/abs/1703.02757. The paper weighs all clients equally, which ``EqualWeights`` does.

    Args:
        f: the largest number of attackers in a round, at least 0. A round, or the buckets of a round, must have 2 f + 3 uploads.
        keep: the number of uploads in the mean, at least 1; None keeps all but f.

    Example:
        >>> rows = UploadMatrix(torch.tensor([[1.0], [1.1], [1.15], [1.4], [90.0]]), torch.full((5,), 0.2))
        >>> MultiKrum(f=1).combine(rows, {})[0]
        tensor([1.1625])
    """

    keep: int | None = option(None, ">= 1")

    @property
    def least(self) -> int:
        return max(2 * self.f + 3, self.keep or 0)

    def combine(self, uploads: UploadMatrix, server: Slot) -> tuple[Tensor, Slot]:
        order = scores(distances(uploads.values), self.f).argsort(stable=True)
        kept = order[: self.keep or len(order) - self.f]
        weights = counted(uploads.weights[kept])
        return UploadMatrix(uploads.values[kept], weights / weights.sum()).mean(), server


def scores(distances: Tensor, f: int, power: int = 2) -> Tensor:
    """Krum's score of each row, [n]."""
    neighbours = max(1, len(distances) - f - 2)
    own = torch.eye(len(distances), dtype=torch.bool, device=distances.device)
    nearest = distances.masked_fill(own, torch.inf).sort(dim=1).values[:, :neighbours]
    return nearest.double().pow(power).sum(1)


@dataclass(frozen=True)
class Bulyan(ToleratesAttackers, UploadAggregator):
    """Selects n - 2 f uploads by repeated Krum, and averages for each number the n - 4 f selected values nearest their median.

    ::

        u[j] = sum_k p_k u_k[j] / sum_k p_k      over the n - 4 f selected clients with the smallest |u_k[j] - median[j]|

    Krum alone bounds the distance between whole updates, and an attacker can hide a large change of one number in it. Krum counts the
    r - f - 2 nearest of the r uploads that are left, and at least one. The median is a client's value, the lower of the two in the
    middle if the selected clients are an even number. They count equally in it, and by their aggregation weights in the mean.

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

        def near_median(part: Tensor) -> Tensor:
            away = (part - part.median(dim=0).values).abs()
            nearest = away.argsort(dim=0, stable=True)[: count - 4 * self.f]
            return weighted_mean(part.gather(0, nearest), weights[nearest])

        return by_columns(near_median, values), server
