"""Steps before a robust rule: StaticClipping, AdaptiveRobustClipping, Bucketing and NearestNeighbourMixing."""

from dataclasses import dataclass

import torch

from flcog.callbacks.robust.parts import Combine, ToleratesAttackers, clipped, counted, distances
from flcog.core.checks import option
from flcog.core.types import Slot
from flcog.method import Cohort, UploadChange, UploadMatrix


@dataclass(frozen=True)
class StaticClipping(UploadChange):
    """Shortens every client's change of the parameters to a norm of at most ``norm`` at the server, before the rule acts.

    ::

        D_k <- D_k min(1, norm / ||D_k||)

    Without a rule it is ``NormBound``. Allouah et al., Adaptive Gradient Clipping for Robust Federated Learning, ICLR 2025,
    https://arxiv.org/abs/2405.14432, compare it with ``AdaptiveRobustClipping``.

    Args:
        norm: > 0, in the unit of the updates.

    Example:
        >>> import torch
        >>> rows = UploadMatrix(torch.tensor([[90.0], [0.5]]), torch.full((2,), 0.5))
        >>> StaticClipping(norm=1.0).change(rows, {}, None, None)[0].values.T
        tensor([[1.0000, 0.5000]])
    """

    norm: float = option(1.0, "> 0")

    def change(self, uploads: UploadMatrix, server: Slot, cohort: Cohort, combine: Combine) -> tuple[UploadMatrix, Slot]:
        return clipped(uploads, self.norm), server


@dataclass(frozen=True)
class AdaptiveRobustClipping(ToleratesAttackers, UploadChange):
    """Shortens the longest changes of the parameters to the length of the next longest one, before the rule acts.

    ::

        D_k <- D_k min(1, C / ||D_k||)      with C the (1 + floor(2 f (n - f) / n))-th largest of the n norms

    A fixed bound is too large late in training, or too small early. This one follows the uploads, and keeps the guarantees of the rule.

    Allouah et al., Adaptive Gradient Clipping for Robust Federated Learning, ICLR 2025, https://arxiv.org/abs/2405.14432.

    Args:
        f: the largest number of attackers among the uploads, at least 0. Less than half of the uploads may attack.

    Example:
        >>> import torch
        >>> rows = UploadMatrix(torch.tensor([[1.0], [2.0], [-90.0]]), torch.full((3,), 1 / 3))
        >>> AdaptiveRobustClipping(f=1).change(rows, {}, None, None)[0].values.T
        tensor([[ 1.,  2., -2.]])
    """

    def change(self, uploads: UploadMatrix, server: Slot, cohort: Cohort, combine: Combine) -> tuple[UploadMatrix, Slot]:
        count = len(uploads.values)
        longest = 2 * self.f * (count - self.f) // count
        norm = uploads.norms().sort(descending=True).values[longest]
        return clipped(uploads, norm), server


@dataclass(frozen=True)
class Bucketing(UploadChange):
    """Divides the uploads of a round at random into buckets of ``s``, and hands their means to the rule.

    ::

        v_b = sum_{k in b} p_k u_k / sum_{k in b} p_k

    Means of different clients resemble one another more than single clients do, so that the rule takes fewer honest clients for
    attackers. Each attacker spoils one bucket: the rule's ``f`` stays the same, and it has ceil(n / s) uploads. A bucket's mean and its
    weight follow from the aggregation weights. Without a rule, the mean of the model's change stays the same.

    Karimireddy et al., Byzantine-Robust Learning on Heterogeneous Datasets via Bucketing, ICLR 2022,
    https://arxiv.org/abs/2006.09365.

    Args:
        s: the number of uploads in a bucket, at least 1. The last bucket may have fewer.

    Example:
        >>> Bucketing(s=2).rows_left(25)
        13
    """

    s: int = option(2, ">= 1")

    def rows_left(self, count: int) -> int:
        return -(-count // self.s)

    def change(self, uploads: UploadMatrix, server: Slot, cohort: Cohort, combine: Combine) -> tuple[UploadMatrix, Slot]:
        order = torch.randperm(len(uploads.values), generator=cohort.rng(self.name)).to(uploads.values.device)
        buckets = [(uploads.values[part], uploads.weights[part]) for part in order.split(self.s)]
        means = [UploadMatrix(values, counted(weights) / counted(weights).sum()).mean() for values, weights in buckets]
        weights = torch.stack([weights.sum() for _, weights in buckets])
        return uploads._replace(values=torch.stack(means), weights=weights, clients=()), server


@dataclass(frozen=True)
class NearestNeighbourMixing(ToleratesAttackers, UploadChange):
    """Replaces each upload by the weighted mean of the n - f uploads that are nearest to it, itself included, before the rule acts.

    ::

        v_k = sum_{j near k} p_j u_j / sum_{j near k} p_j

    Allouah et al., Fixing by Mixing: A Recipe for Optimal Byzantine ML under Heterogeneity, AISTATS 2023,
    https://arxiv.org/abs/2302.01772. The paper weighs all clients equally, which ``EqualWeights`` does.

    Args:
        f: the largest number of attackers among the uploads, at least 0. Less than half of the uploads may attack.

    Example:
        >>> rows = UploadMatrix(torch.tensor([[1.0], [2.0], [90.0]]), torch.full((3,), 1 / 3))
        >>> NearestNeighbourMixing(f=1).change(rows, {}, None, None)[0].values.T
        tensor([[ 1.5000,  1.5000, 46.0000]])
    """

    def change(self, uploads: UploadMatrix, server: Slot, cohort: Cohort, combine: Combine) -> tuple[UploadMatrix, Slot]:
        nearest = distances(uploads.values).argsort(dim=1, stable=True)[:, : len(uploads.values) - self.f]
        shares = torch.zeros(len(nearest), len(nearest), dtype=uploads.weights.dtype, device=nearest.device)
        shares.scatter_(1, nearest, counted(uploads.weights[nearest]))
        shares /= shares.sum(1, keepdim=True)
        values = torch.stack([UploadMatrix(uploads.values, row).mean() for row in shares])
        return uploads._replace(values=values.to(uploads.values.dtype), clients=()), server
