"""Whole numbers of a few bits each, and positions of a vector, packed into bytes by functions that vmap can transform."""

import torch
import torch.nn.functional as F
from torch import Tensor


def pack_bits(codes: Tensor, bits: int) -> Tensor:
    """The lowest ``bits`` (1 to 62) of each whole number, int64 [n], packed into uint8 [ceil(n * bits / 8)].

    Numbers of more than 8 bits are stored as their lowest bytes, followed by the packed rest.

    >>> pack_bits(torch.tensor([1, 0, 0, 0, 0, 0, 0, 1, 1]), bits=1)
    tensor([129,   1], dtype=torch.uint8)
    """
    if bits == 8:
        return (codes & 255).to(torch.uint8)
    if bits > 8:
        return torch.cat([pack_bits(codes, 8), pack_bits(codes >> 8, bits - 8)])
    count = codes.shape[0]
    groups = F.pad(codes & (2**bits - 1), (0, -count % 8)).view(-1, 8)
    words = (groups << _shifts(bits, 8, codes)).sum(1)  # 8 numbers of up to 8 bits fill up to 64 bits
    return ((words[:, None] >> _shifts(8, bits, codes)) & 255).to(torch.uint8).reshape(-1)[: packed_bytes(count, bits)]


def unpack_bits(packed: Tensor, bits: int, count: int) -> Tensor:
    """The inverse of :func:`pack_bits`, int64 [count].

    >>> unpack_bits(pack_bits(torch.tensor([5, 300, 511]), bits=9), bits=9, count=3)
    tensor([  5, 300, 511])
    """
    if bits == 8:
        return packed.long()
    if bits > 8:
        return packed[:count].long() | unpack_bits(packed[count:], bits - 8, count) << 8
    groups = F.pad(packed.long(), (0, -packed.shape[0] % bits)).view(-1, bits)
    words = (groups << _shifts(8, bits, packed)).sum(1)
    return ((words[:, None] >> _shifts(bits, 8, packed)) & (2**bits - 1)).reshape(-1)[:count]


def packed_bytes(count: int, bits: int) -> int:
    """The length of :func:`pack_bits`'s result."""
    whole, rest = divmod(bits, 8)
    return whole * count + -(-rest * count // 8)


def _shifts(step: int, count: int, like: Tensor) -> Tensor:
    return step * torch.arange(count, device=like.device)


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
