"""RandomK: numbers at random positions."""

from dataclasses import dataclass

from torch import Tensor

from flcog.callbacks.codecs.codec import Noise
from flcog.callbacks.codecs.sparse import Sparse
from flcog.callbacks.parts.noise import words
from flcog.core.types import Slot
from flcog.wire.envelope import Field


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

    Example:
        >>> RandomK(fraction=0.1).kind
        'encode'
    """

    @property
    def is_random(self) -> bool:
        return True

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
