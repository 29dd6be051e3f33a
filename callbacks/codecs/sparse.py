"""The base of codecs that send some numbers of a tensor, which a second codec may shorten."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from flcog.callbacks.codecs.codec import Codec, Noise
from flcog.callbacks.codecs.positions import num_kept
from flcog.core.checks import within
from flcog.core.types import Slot
from flcog.wire.envelope import Field


@dataclass(frozen=True)
class Sparse(Codec):
    """Sends a fraction of the numbers of each tensor.

    Args:
        fraction: of the numbers that are sent, in (0, 1].
        values: the codec for these numbers; None sends them as they are.

    >>> Sparse(fraction=0.25)._count(100)
    25
    """

    fraction: float = 0.01
    values: Codec | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        within(self, "(0, 1]", "fraction")
        if self.values is None:
            return
        if isinstance(self.values, Sparse):
            raise ValueError(
                f"{self.name} and {self.values.name} cannot be nested, because both choose numbers: multiply their fractions, and keep one"
            )
        if self.values.votes:
            raise ValueError(
                f"{self.name} and {self.values.name} cannot be nested with combine=majority, because clients would vote on different "
                "numbers: use combine=mean"
            )
        if self.values.error_feedback:
            raise ValueError(
                f"{self.name} and the codec of its values, {self.values.name}, cannot both have error_feedback: set it for {self.name}, "
                "whose residual contains both errors"
            )

    @property
    def is_random(self) -> bool:
        return self.values is not None and self.values.is_random

    def _chosen_values(self, values: Tensor, positions: Tensor, noise: Noise) -> Slot:
        """The numbers at these positions, encoded by the codec of the values."""
        chosen, inner = values[positions], self._inner
        return inner.encode(chosen, noise.inner()) if inner is not None and inner.encodes(chosen) else chosen

    def _spread(self, encoded: Slot, positions: Tensor, field: Field) -> Tensor:
        """The vector with the decoded numbers at their positions, and 0 elsewhere."""
        part, inner = Field((positions.shape[0],), field.dtype), self._inner
        chosen = inner.decode(encoded, part) if inner is not None and inner.encodes(part) else encoded
        return torch.zeros(field.shape, dtype=chosen.dtype, device=chosen.device).scatter(0, positions, chosen)

    def _count(self, size: int) -> int:
        """The number of numbers that are sent of a vector."""
        return num_kept(self.fraction, size)

    @property
    def _inner(self) -> Codec | None:
        """The codec of the values, which contracts if this codec has error feedback."""
        return replace(self.values, error_feedback=True) if self.values is not None and self.error_feedback else self.values
