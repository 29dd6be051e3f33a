"""Encoded tensors as the strings of bytes that clients send."""

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from flcog.callbacks.codecs.codec import Codec, Noise
from flcog.wire.envelope import Field


def to_bytes(codec: Codec, value: Tensor, noise: Noise) -> bytes:
    parts = pytree.tree_leaves(codec.encode(value.reshape(-1), noise)) if codec.encodes(value) else [value]
    return b"".join(part.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() for part in parts)


def from_bytes(codec: Codec, data: bytes, field: Field) -> Tensor:
    """The tensor that the receiver of these bytes sees."""
    like, encodes = torch.zeros(field.shape, dtype=field.dtype), codec.encodes(field)
    leaves, spec = pytree.tree_flatten(codec.encode(like.view(-1), Noise(torch.tensor(0), 0)) if encodes else like)
    parts = torch.frombuffer(bytearray(data), dtype=torch.uint8).split([leaf.nbytes for leaf in leaves])
    tree = pytree.tree_unflatten(
        [part.clone().view(leaf.dtype).view(leaf.shape) for part, leaf in zip(parts, leaves, strict=True)], spec
    )
    return codec.decode(tree, Field((like.numel(),), field.dtype)).to(field.dtype).view(field.shape) if encodes else tree
