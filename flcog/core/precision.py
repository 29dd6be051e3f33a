"""The precision of a run, of sums over clients and of single numbers, and the way of tensors to the run's device."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import torch
from torch import Tensor

from flcog.core.global_streams import kept

DTYPES = {"32-true": torch.float32, "64-true": torch.float64, "bf16-true": torch.bfloat16, "bf16-mixed": torch.float32}
"""The dtype of parameters for each of Lightning's names of precisions."""


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Create new tensors in this dtype. Restores the default afterwards."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextmanager
def repeatable(tf32: bool | None) -> Iterator[None]:
    """Make convolutions on a GPU give the same bits every time, and choose the precision of products. Restores torch's settings.

    By default cuDNN may choose algorithms that add in varying order. With ``tf32``, GPUs round the factors of float32 products to 11
    binary digits; by default torch does so in convolutions but not in matrix products. ``None`` keeps this.
    """
    matmul, cudnn, products = torch.backends.cuda.matmul, torch.backends.cudnn, ["allow_tf32"] * (tf32 is not None)
    with kept(cudnn, "deterministic", *products), kept(matmul, *products):
        cudnn.deterministic = True
        if tf32 is not None:
            matmul.allow_tf32 = cudnn.allow_tf32 = tf32
        yield


def number_dtype(dtype: torch.dtype | None = None) -> torch.dtype:
    """The dtype of single numbers beside tensors of ``dtype`` (by default the run's): the same, but at least float32.

    bfloat16 has 8 binary digits: it counts only to 256, shares have errors up to 0.4%, and a sum stops growing once it is 256 times
    the next summand.

    >>> number_dtype(torch.bfloat16), number_dtype(torch.float64)
    (torch.float32, torch.float64)
    """
    return torch.promote_types(dtype or torch.get_default_dtype(), torch.float32)


def sent(tensor: Tensor, device: torch.device) -> Tensor:
    """Move a tensor to the device without waiting for a GPU. torch keeps the pinned memory until the copy is finished.

    torch cannot pin tensors whose elements share memory, as after ``expand``. On Apple's ``mps`` this waits, because the device
    would read memory that was freed meanwhile (https://github.com/pytorch/pytorch/issues/189690).
    """
    if pins(device) and tensor.device.type == "cpu":
        return tensor.contiguous().pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


def pins(device: torch.device) -> bool:
    """Return whether the device reads pinned memory while the CPU continues."""
    return device.type == "cuda"


def count_on(device: torch.device, count: Tensor | int) -> Tensor:
    """Create a tensor of a number, such as a step's, on the device. An accelerator would wait for a copy from the CPU.

    >>> count_on(torch.device("cpu"), 3)
    tensor(3)
    """
    return torch.zeros((), dtype=torch.int64, device=device) + count


def float64_device(device: torch.device) -> torch.device:
    """Return the device for computing in float64: the same device, or the CPU if it has no float64 (Apple's ``mps``)."""
    return device if device.type == "cpu" or _has_float64(device.type) else torch.device("cpu")


def to_float64_device(tensor: Tensor) -> Tensor:
    """Move a tensor to a device that computes in float64. Keeps its dtype."""
    return tensor.to(float64_device(tensor.device))


@cache
def _has_float64(device: str) -> bool:
    try:
        torch.zeros((), dtype=torch.float64, device=device)
    except (TypeError, RuntimeError):
        return False
    return True


def weighted_sum(factors: Tensor, values: Tensor) -> Tensor:
    """The sum of values [K, ...], each times its factor [K].

    On accelerators this is not a product of matrices, because GPUs may round the factors of a product to 11 binary digits if the user
    allows that for training (``torch.set_float32_matmul_precision``).
    """
    if values.device.type == "cpu":
        return torch.tensordot(factors, values, 1)
    return (factors.view(-1, *[1] * (values.ndim - 1)) * values).sum(0, dtype=torch.float64)
