"""Bucketing: a robust rule sees means of a few clients."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from flcog.callbacks.robust.parts import counted
from flcog.core.checks import at_least
from flcog.core.types import Slot
from flcog.method import Cohort, UploadChange, UploadMatrix


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

    s: int = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, 1, "s")

    def rows_left(self, count: int) -> int:
        return -(-count // self.s)

    def change(
        self, uploads: UploadMatrix, server: Slot, cohort: Cohort, combine: Callable[[UploadMatrix], Tensor]
    ) -> tuple[UploadMatrix, Slot]:
        order = torch.randperm(len(uploads.values), generator=cohort.rng(self.name)).to(uploads.values.device)
        buckets = [UploadMatrix(uploads.values[part], uploads.weights[part]) for part in order.split(self.s)]
        means = [UploadMatrix(values, counted(weights) / counted(weights).sum()).mean() for values, weights, _ in buckets]
        return UploadMatrix(torch.stack(means), torch.stack([bucket.weights.sum() for bucket in buckets])), server
