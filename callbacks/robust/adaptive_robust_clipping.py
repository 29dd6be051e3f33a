"""AdaptiveRobustClipping: the longest uploads are shortened to the length of another one, before a robust rule."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from flcog.callbacks.robust.parts import ToleratesAttackers, clipped
from flcog.core.types import Slot
from flcog.method import Cohort, UploadChange, UploadMatrix


@dataclass(frozen=True)
class AdaptiveRobustClipping(ToleratesAttackers, UploadChange):
    """Shortens the longest uploads to the length of the next longest one, before the rule acts.

    ::

        v_k = u_k min(1, C / ||u_k||)      with C the (1 + floor(2 f (n - f) / n))-th largest of the n norms

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

    def change(
        self, uploads: UploadMatrix, server: Slot, cohort: Cohort, combine: Callable[[UploadMatrix], Tensor]
    ) -> tuple[UploadMatrix, Slot]:
        count = len(uploads.values)
        longest = 2 * self.f * (count - self.f) // count
        norm = uploads.values.norm(dim=1).sort(descending=True).values[longest]
        return uploads._replace(values=clipped(uploads.values, norm)), server
