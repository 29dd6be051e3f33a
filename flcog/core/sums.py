"""Weighted sums over clients."""

import torch
from torch import Tensor


def weighted_sum(factors: Tensor, values: Tensor) -> Tensor:
    """The sum of values [K, ...], each times its factor [K].

    On accelerators this is not a product of matrices, because GPUs may round the factors of a product to 11 binary digits if the user
    allows that for training (``torch.set_float32_matmul_precision``).
    """
    if values.device.type == "cpu":
        return torch.tensordot(factors, values, 1)
    return (factors.view(-1, *[1] * (values.ndim - 1)) * values).sum(0, dtype=torch.float64)
