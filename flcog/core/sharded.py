"""Tensors that a strategy has divided among processes (``torch.distributed.tensor.DTensor``), and whole tensors."""

from typing import Any

import torch
from torch import Tensor, nn


def is_sharded(value: Any) -> bool:
    """Whether this process holds a part of the tensor alone."""
    return hasattr(value, "full_tensor")


def whole(value: Tensor) -> Tensor:
    """The whole tensor. Of a divided one all processes must ask for it at once."""
    divided: Any = value
    return divided.full_tensor() if is_sharded(value) else value  # type: ignore[no-any-return]


def divide_again(module: nn.Module) -> None:
    """Let torch's ``fully_shard`` divide the parameters that a forward pass without a backward pass has left whole."""
    layer: Any
    for layer in module.modules():
        if hasattr(layer, "reshard"):
            layer.reshard()


def load(target: Tensor, value: Tensor) -> None:
    """Copy a whole tensor, which every process has, into one that may be divided."""
    if is_sharded(target):
        from torch.distributed.tensor import distribute_tensor  # takes 0.3 s

        divided: Any = target
        value = distribute_tensor(value.to(divided.device), divided.device_mesh, divided.placements, src_data_rank=None)
    with torch.no_grad():
        target.copy_(value)
