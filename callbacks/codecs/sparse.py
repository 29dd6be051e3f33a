"""TopK and RandomK: some numbers of each tensor, which a second codec may shorten."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from flcog.callbacks.codecs.bits import pack_positions, unpack_positions
from flcog.callbacks.codecs.codec import Codec, Noise
from flcog.callbacks.parts.noise import words
from flcog.core.checks import option
from flcog.core.types import Slot
from flcog.wire.envelope import Field


@dataclass(frozen=True)
class Sparse(Codec):
    """Sends a fraction of the numbers of each tensor.

    Args:
        fraction: of the numbers that are sent, in (0, 1].
        values: the codec for these numbers; None sends them as they are.

    >>> RandomK(fraction=0.25)._count(100), RandomK(fraction=0.01)._count(20)
    (25, 1)
    """

    fraction: float = option(0.01, "(0, 1]")
    values: Codec | None = None

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
        """The number of numbers that are sent of a vector, at least 1."""
        return min(size, max(1, round(self.fraction * size)))

    @property
    def _inner(self) -> Codec | None:
        """The codec of the values, which contracts if this codec has error feedback."""
        return replace(self.values, error_feedback=True) if self.values is not None and self.error_feedback else self.values


@dataclass(frozen=True)
class TopK(Sparse):
    """Sends the numbers of each tensor with the largest magnitudes, and their positions.

    Of a tensor v of d numbers, the receiver sees the k = fraction * d largest, and 0 for all others::

        v_i -> v_i  if |v_i| is among the k largest magnitudes,  else 0

    This loses at most 1 - k / d of the squared norm, in the same coordinates round after round, so list it with ``error_feedback``: each
    client then adds its lost part to its next change. Positions are sent as one bit for each number of the tensor or as packed indices,
    whichever is shorter. A second codec can shorten the values. With ``error_feedback`` the second codec has error feedback, too:
    ``Quantize`` then divides by 1 + omega, and a client's residual is its change minus the decoded change.

    Stich et al., Sparsified SGD with Memory, NeurIPS 2018, https://arxiv.org/abs/1809.07599.

    Args:
        fraction: k / d, in (0, 1].
        values: the codec for the values, such as ``Quantize``; None sends them as they are.
    """

    def encode(self, values: Tensor, noise: Noise) -> Slot:
        size = values.shape[0]
        positions = values.abs().topk(self._count(size), sorted=False).indices.sort().values
        return {"values": self._chosen_values(values, positions, noise), "positions": pack_positions(positions, size)}

    def decode(self, encoded: Slot, field: Field) -> Tensor:
        (size,) = field.shape
        return self._spread(encoded["values"], unpack_positions(encoded["positions"], self._count(size), size), field)


@dataclass(frozen=True)
class RandomK(Sparse):
    """Sends the numbers of each tensor at k random positions, and the seed of these positions.

    Of a tensor v of d numbers, the receiver sees the k = fraction * d numbers, scaled so that the expectation is v, and 0 for all others::

        v_i -> (d / k) v_i  if i is among the k positions,  else 0

    The expected squared error is (d / k - 1) ||v||^2. With ``error_feedback`` the numbers are not scaled, so that the error is
    (1 - k / d) ||v||^2 and the residual stays bounded. A second codec can shorten the values.

    Konecny et al., Federated Learning: Strategies for Improving Communication Efficiency, 2016, https://arxiv.org/abs/1610.05492 ("random
    mask"); Stich et al., Sparsified SGD with Memory, NeurIPS 2018, https://arxiv.org/abs/1809.07599 (error feedback).

    Args:
        fraction: k / d, in (0, 1].
        values: the codec for the values, such as ``Quantize``; None sends them as they are.
    """

    def encode(self, values: Tensor, noise: Noise) -> Slot:
        seed, size = noise.seed(), values.shape[0]
        return {"values": self._chosen_values(values, self._positions(seed, size), noise), "seed": seed}

    def decode(self, encoded: Slot, field: Field) -> Tensor:
        (size,) = field.shape
        chosen = self._spread(encoded["values"], self._positions(encoded["seed"], size), field)
        return chosen if self.error_feedback else chosen * (size / self._count(size))

    def _positions(self, seed: Tensor, size: int) -> Tensor:
        """Random positions, which sender and receiver draw from the same seed."""
        # Words of 64 bits have no ties, which two machines might break in different ways.
        return words(seed, 0, (size,)).topk(self._count(size), sorted=False).indices.sort().values
