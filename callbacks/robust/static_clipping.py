"""StaticClipping: a bound on the norm of each upload, before a robust rule."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from flcog.callbacks.robust.parts import clipped
from flcog.core.checks import positive
from flcog.core.types import Slot
from flcog.method import Cohort, UploadChange, UploadMatrix


@dataclass(frozen=True)
class StaticClipping(UploadChange):
    """Shortens every upload to a norm of at most ``norm`` at the server, before the rule acts.

    ::

        v_k = u_k min(1, norm / ||u_k||)

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

    norm: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        positive(self, "norm")

    def change(
        self, uploads: UploadMatrix, server: Slot, cohort: Cohort, combine: Callable[[UploadMatrix], Tensor]
    ) -> tuple[UploadMatrix, Slot]:
        return uploads._replace(values=clipped(uploads.values, self.norm)), server
