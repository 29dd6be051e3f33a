"""The byte string of an encoded tensor: its scales, positions and levels one after another, in exactly the bytes that the ledger counts."""

from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from flcog.callbacks.codecs.codec import Codec, Noise, layout
from flcog.wire.envelope import Field, num_bytes


def to_bytes(codec: Codec, value: Tensor, noise: Noise) -> bytes:
    """A tensor as the bytes that a client sends. Numbers are little-endian on the machines that torch supports.

    >>> from flcog.callbacks import Quantize
    >>> codec, value = Quantize(bits=4, stochastic=False), torch.linspace(-7, 7, 15).repeat(2)
    >>> data = to_bytes(codec, value, Noise(torch.tensor(1), place=0))
    >>> len(data), torch.equal(from_bytes(codec, data, Field((30,), torch.float32)), value)
    (19, True)
    """
    parts = pytree.tree_leaves(codec.encode(value.reshape(-1), noise)) if codec.encodes(value) else [value]
    return b"".join(part.contiguous().reshape(-1).view(torch.uint8).cpu().numpy().tobytes() for part in parts)


def from_bytes(codec: Codec, data: bytes, field: Field) -> Tensor:
    """The tensor that the receiver of these bytes sees.

    Args:
        codec: the sender's.
        data: the result of :func:`to_bytes`.
        field: the shape and the type of the tensor.
    """
    size, begin, parts = torch.Size(field.shape).numel(), 0, []
    expected: Any = (
        layout(codec, size, field.dtype) if codec.encodes(field) else torch.empty(size, dtype=field.dtype, device="meta")
    )
    leaves, spec = pytree.tree_flatten(expected)
    if len(data) != sum(map(num_bytes, leaves)):
        raise ValueError(
            f"{codec.name}: a tensor of shape {list(field.shape)} takes {sum(map(num_bytes, leaves))} bytes; got {len(data)}"
        )
    for leaf in leaves:
        part = torch.frombuffer(bytearray(data[begin : begin + num_bytes(leaf)]), dtype=leaf.dtype)
        parts.append(part.view(leaf.shape))
        begin += num_bytes(leaf)
    encoded = pytree.tree_unflatten(parts, spec)
    decoded = codec.decode(encoded, Field((size,), field.dtype)) if codec.encodes(field) else encoded
    return decoded.to(field.dtype).view(field.shape)
