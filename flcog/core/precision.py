"""The run's precision as torch's default dtype, and that of single numbers: counts, shares, losses, norms."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import Tensor

DTYPES = {"32-true": torch.float32, "64-true": torch.float64, "bf16-true": torch.bfloat16, "bf16-mixed": torch.float32}
"""What parameters are in, by what Lightning calls a precision."""


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """New tensors have this dtype; the default is put back afterwards."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextmanager
def tensor_cores(tf32: bool | None) -> Iterator[None]:
    """Whether GPUs round the factors of float32 products to TF32's 11 binary digits; what torch was set to is put back afterwards.

    torch's own settings differ: convolutions do, matrix products do not. ``None`` leaves them as they are.
    """
    if tf32 is None:
        yield
        return
    places: tuple[Any, ...] = (torch.backends.cuda.matmul, torch.backends.cudnn)
    try:
        before = [place.allow_tf32 for place in places]
    except RuntimeError as error:  # torch.backends.*.fp32_precision was set, of which these are the older names
        raise ValueError(
            f"tf32={tf32}: torch.backends has fp32_precision set in a way for which torch has no allow_tf32: leave trainer.tf32 out, or "
            "leave fp32_precision as it is"
        ) from error
    for place in places:
        place.allow_tf32 = tf32
    try:
        yield
    finally:
        for place, allowed in zip(places, before, strict=True):
            place.allow_tf32 = allowed


@contextmanager
def repeatable_convolutions() -> Iterator[None]:
    """Convolutions on a GPU give the same bits every time: else cuDNN may choose some whose sums are added up in any order.

    What torch was set to is put back afterwards.
    """
    before, torch.backends.cudnn.deterministic = torch.backends.cudnn.deterministic, True
    try:
        yield
    finally:
        torch.backends.cudnn.deterministic = before


def number_dtype(dtype: torch.dtype | None = None) -> torch.dtype:
    """What a number is kept in beside tensors of ``dtype`` (by default the run's): the same, but float32 at least.

    bfloat16 has 8 binary digits: it counts to 256, shares in it are up to 0.4% off, and a sum stands still once it is 256 times
    what is added.

    >>> number_dtype(torch.bfloat16), number_dtype(torch.float64)
    (torch.float32, torch.float64)
    """
    return torch.promote_types(dtype or torch.get_default_dtype(), torch.float32)


def count_on(device: torch.device, count: Tensor | int) -> Tensor:
    """A step's number, say, as a tensor that was made there: an accelerator would wait for what is copied from the CPU.

    >>> count_on(torch.device("cpu"), 3)
    tensor(3)
    """
    return torch.zeros((), dtype=torch.int64, device=device) + count


def float64_device(device: torch.device) -> torch.device:
    """Where to compute in float64 what concerns this device: there, or on the CPU where it has no float64 (Apple's ``mps``)."""
    return device if device.type == "cpu" or _has_float64(device.type) else torch.device("cpu")


def to_float64_device(tensor: Tensor) -> Tensor:
    """The tensor where it can be computed with in float64; its own type stays as it is."""
    return tensor.to(float64_device(tensor.device))


@cache
def _has_float64(device: str) -> bool:
    try:
        torch.zeros((), dtype=torch.float64, device=device)
    except (TypeError, RuntimeError):
        return False
    return True
