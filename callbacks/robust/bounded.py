"""NormBound and CenteredClipping: means of uploads whose influence the server bounds."""

from dataclasses import dataclass

import torch
from torch import Tensor

from flcog.callbacks.robust.parts import clipped, distances_to
from flcog.core.checks import option
from flcog.core.types import Slot
from flcog.method import UploadAggregator, UploadMatrix


@dataclass(frozen=True)
class NormBound(UploadAggregator):
    """Shortens every client's change of the parameters to a norm of at most ``norm`` at the server, and takes the weighted mean.

    ::

        D = sum_k p_k D_k min(1, norm / ||D_k||)

    Messages of methods and BatchNorm's statistics are averaged as they are. Unlike ``ClipUpdate``, which clients apply, attackers cannot
    leave it out. It limits an attacker's influence on one round and does not remove it.

    Sun et al., Can You Really Backdoor Federated Learning?, 2019, https://arxiv.org/abs/1911.07963.

    Args:
        norm: > 0, in the unit of the updates.

    Example:
        >>> NormBound(norm=1.0).combine(UploadMatrix(torch.tensor([[90.0], [0.5]]), torch.full((2,), 0.5)), {})[0]
        tensor([0.7500])
    """

    norm: float = option(1.0, "> 0")

    def combine(self, uploads: UploadMatrix, server: Slot) -> tuple[Tensor, Slot]:
        return clipped(uploads, self.norm).mean(), server


@dataclass(frozen=True)
class CenteredClipping(UploadAggregator):
    """Moves from the last round's aggregate v towards the uploads, and clips the distance to each of them.

    ::

        v <- v + sum_k p_k (u_k - v) min(1, radius / ||u_k - v||)      steps times

    p_k are the aggregation weights. An attacker moves the aggregate by at most ``radius`` p_k in a step. The last aggregate is the
    server's state, and 0 before the first round; it is 0 again if other methods begin or end to send messages.

    Karimireddy et al., Learning from History for Byzantine Robust Optimization, ICML 2021, https://arxiv.org/abs/2012.10333. The updates
    of clients with ``WorkerMomentum`` change little between rounds, which the paper assumes.

    Args:
        radius: > 0, in the unit of the updates.
        steps: at least 1.

    Example:
        >>> rows = UploadMatrix(torch.tensor([[1.0], [1.0], [90.0]]), torch.full((3,), 1 / 3))
        >>> CenteredClipping(radius=1.5, steps=1).combine(rows, {})[0]
        tensor([1.1667])
    """

    radius: float = option(10.0, "> 0")
    steps: int = option(3, ">= 1")

    def combine(self, uploads: UploadMatrix, server: Slot) -> tuple[Tensor, Slot]:
        center = torch.zeros_like(uploads.values[0])
        if "last" in server and server["last"].shape == center.shape:
            center = server["last"]
        for _ in range(self.steps):
            lengths = distances_to(center, uploads.values).clamp(min=1e-30)
            weights = uploads.weights * (self.radius / lengths).clamp(max=1.0)
            center = (1 - weights.sum()) * center + uploads._replace(weights=weights).mean()
        return center, {"last": center}
