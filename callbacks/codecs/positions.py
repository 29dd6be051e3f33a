"""Some positions of a vector in the fewest bytes: a bit for each number, or the packed positions."""

import torch
from torch import Tensor

from flcog.callbacks.codecs.bits import pack_bits, packed_bytes, unpack_bits


def num_kept(fraction: float, size: int) -> int:
    """The numbers that a sparse codec keeps, at least 1.

    >>> num_kept(0.01, 1000), num_kept(0.01, 20)
    (10, 1)
    """
    return min(size, max(1, round(fraction * size)))


def pack_positions(positions: Tensor, size: int) -> Tensor:
    """Increasing positions below ``size``, [k], in the shorter of both forms, uint8.

    >>> pack_positions(torch.tensor([0, 3, 5]), 8), pack_positions(torch.tensor([3]), 100)
    (tensor([41], dtype=torch.uint8), tensor([3], dtype=torch.uint8))
    """
    if _as_mask(len(positions), size):
        return pack_bits(torch.zeros(size, dtype=torch.int64, device=positions.device).scatter(0, positions, 1), 1)
    return pack_bits(positions, _bits(size))


def unpack_positions(packed: Tensor, count: int, size: int) -> Tensor:
    """The inverse of :func:`pack_positions`.

    >>> unpack_positions(pack_positions(torch.tensor([0, 3, 5]), 8), 3, 8)
    tensor([0, 3, 5])
    """
    if _as_mask(count, size):
        return unpack_bits(packed, 1, size).sort(descending=True, stable=True).indices[:count]
    return unpack_bits(packed, _bits(size), count)


def _bits(size: int) -> int:
    return max(1, (size - 1).bit_length())


def _as_mask(count: int, size: int) -> bool:
    return packed_bytes(size, 1) <= packed_bytes(count, _bits(size))
