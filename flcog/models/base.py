"""FeatureModel, the base class of all networks here, and a dropout that every executor can run."""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from flcog.core.checks import within
from flcog.core.randomness import GOLDEN, mix
from flcog.core.trees import Tree, call


class FeatureModel(nn.Module, ABC):
    """A network whose last step is ``head(features(x))``.

    Methods that look inside a model ask for no more than this: MOON and FedDecorr read the features, FedRep keeps the head
    at home, FedWalk and VHL replace it by another.
    """

    head: nn.Module
    num_features: int

    @abstractmethod
    def features(self, x: Tensor) -> Tensor:
        """Return the input of the head, [B, num_features]."""

    def forward(self, inputs: Tree, /) -> Tensor:
        return self.head(call(self.features, inputs))

    def _check_input(self, x: Tensor, *shape: int, fix: str) -> None:
        # torch's own message would name two matrices that the user has never seen.
        if x.shape[1:] != shape:
            raise ValueError(f"{type(self).__name__} takes inputs of shape {shape}, got {tuple(x.shape[1:])}: {fix}")


class Dropout(nn.Module):
    """Dropout whose noise is a function of a key, not of a random stream: loop, vmap and a resumed run drop the same elements.

    Element i of a [B, ...] input, counted row by row, is kept where a hash of (key, i) falls into the upper 1 - p of its range,
    and scaled by 1 / (1 - p). The batch is the first axis, so that rows added at the end as padding leave the others' masks
    alone. Each forward in training mode moves the key on in place, as BatchNorm does with ``num_batches_tracked``, so the next
    one drops others. The engine sets ``dropout_key`` for every round, client and layer; layers left at the same key drop the same
    elements.

    Args:
        p: the probability to drop an element, in [0, 1).
    """

    dropout_key: Tensor

    def __init__(self, p: float = 0.5) -> None:
        super().__init__()
        within(self, "[0, 1)", p=p)
        self.p = p
        # The hash is read as a signed integer: its range starts at -2**63.
        self._first_kept = math.floor(p * 2**64) - 2**63
        self.register_buffer("dropout_key", torch.zeros((), dtype=torch.int64), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return x
        position = torch.arange(x.numel(), device=x.device).view(x.shape)
        # The key is mixed before the positions join, or the masks of neighbouring keys would be shifted copies.
        bits = mix(mix(self.dropout_key + GOLDEN) + position * GOLDEN)
        self.dropout_key.add_(1)
        return torch.where(bits >= self._first_kept, x / (1 - self.p), 0.0)

    def extra_repr(self) -> str:
        return f"p={self.p}"


def with_own_dropout(network: nn.Module) -> nn.Module:
    """The network with each ``nn.Dropout``, which draws from torch's global stream, replaced by :class:`Dropout`."""
    for layer in list(network.modules()):
        for name, child in layer.named_children():
            if type(child) is nn.Dropout and 0 < child.p < 1:  # others draw nothing
                setattr(layer, name, Dropout(child.p))
    return network


def fully_connected(widths: Sequence[int]) -> nn.Sequential:
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers)
