"""Whole numbers of a few bits each, packed into bytes without gaps, by functions that vmap can transform."""

import torch
import torch.nn.functional as F
from torch import Tensor


def pack_bits(codes: Tensor, bits: int) -> Tensor:
    """The lowest ``bits`` of each whole number, packed into uint8 [ceil(n * bits / 8)].

    Numbers of more than 8 bits are stored as their lowest bytes, followed by the packed rest.

    Args:
        codes: int64 [n].
        bits: of each number, 1 to 62.

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
