"""NearestNeighbourMixing: each upload is replaced by the mean of its neighbours."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from flcog.callbacks.robust.parts import ToleratesAttackers, counted, distances
from flcog.core.types import Slot
from flcog.method import Cohort, UploadChange, UploadMatrix


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

    def change(
        self, uploads: UploadMatrix, server: Slot, cohort: Cohort, combine: Callable[[UploadMatrix], Tensor]
    ) -> tuple[UploadMatrix, Slot]:
        nearest = distances(uploads.values).argsort(dim=1, stable=True)[:, : len(uploads.values) - self.f]
        shares = torch.zeros(len(nearest), len(nearest), dtype=uploads.weights.dtype, device=nearest.device)
        shares.scatter_(1, nearest, counted(uploads.weights[nearest]))
        shares /= shares.sum(1, keepdim=True)
        values = torch.stack([UploadMatrix(uploads.values, row).mean() for row in shares])
        return uploads._replace(values=values.to(uploads.values.dtype), clients=()), server
