"""NormBound: the mean of updates whose norm the server bounds."""

from dataclasses import dataclass

from torch import Tensor

from flcog.callbacks.robust.parts import clipped
from flcog.core.checks import positive
from flcog.core.types import Slot
from flcog.method import UploadAggregator, UploadMatrix


@dataclass(frozen=True)
class NormBound(UploadAggregator):
    """Shortens every upload to a norm of at most ``norm`` at the server, and takes the weighted mean.

    ::

        u = sum_k p_k u_k min(1, norm / ||u_k||)

    Unlike ``ClipUpdate``, which clients apply, attackers cannot leave it out. It limits an attacker's influence on one round and does
    not remove it.

    Sun et al., Can You Really Backdoor Federated Learning?, 2019, https://arxiv.org/abs/1911.07963.

    Args:
        norm: > 0, in the unit of the updates.

    Example:
        >>> import torch
        >>> NormBound(norm=1.0).combine(UploadMatrix(torch.tensor([[90.0], [0.5]]), torch.full((2,), 0.5)), {})[0]
        tensor([0.7500])
    """

    norm: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        positive(self, "norm")

    def combine(self, uploads: UploadMatrix, server: Slot) -> tuple[Tensor, Slot]:
        return uploads._replace(values=clipped(uploads.values, self.norm)).mean(), server
