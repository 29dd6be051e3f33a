"""TopK: the numbers with the largest magnitudes."""

from dataclasses import dataclass

from torch import Tensor

from flcog.callbacks.codecs.codec import Noise
from flcog.callbacks.codecs.positions import pack_positions, unpack_positions
from flcog.callbacks.codecs.sparse import Sparse
from flcog.core.types import Slot
from flcog.wire.envelope import Field


@dataclass(frozen=True)
class TopK(Sparse):
    """Sends the numbers of each tensor with the largest magnitudes, and their positions.

    Of a tensor v of d numbers, the receiver sees the k = fraction * d largest, and 0 for all others::

        v_i -> v_i  if |v_i| is among the k largest magnitudes,  else 0

    This loses at most 1 - k / d of the squared norm, in the same coordinates round after round, so list it with ``error_feedback``: each
    client then adds its lost part to its next change. Positions are sent as one bit for each number of the tensor or as packed indices,
    whichever is shorter. A second codec can shorten the values.

    Stich et al., Sparsified SGD with Memory, NeurIPS 2018, https://arxiv.org/abs/1809.07599.

    Args:
        fraction: k / d, in (0, 1].
        values: the codec for the values, such as ``Quantize``; None sends them as they are.

    Example:
        >>> TopK(fraction=0.01, error_feedback=True).fraction
        0.01
    """

    def encode(self, values: Tensor, noise: Noise) -> Slot:
        size = values.shape[0]
        positions = values.abs().topk(self._count(size), sorted=False).indices.sort().values
        return {"values": self._chosen_values(values, positions, noise), "positions": pack_positions(positions, size)}

    def decode(self, encoded: Slot, field: Field) -> Tensor:
        (size,) = field.shape
        return self._spread(encoded["values"], unpack_positions(encoded["positions"], self._count(size), size), field)
