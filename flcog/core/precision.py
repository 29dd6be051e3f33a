"""The run's precision as torch's default dtype, and that of single numbers: counts, shares, losses, norms."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

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


def number_dtype(dtype: torch.dtype | None = None) -> torch.dtype:
    """What a number is kept in beside tensors of ``dtype`` (by default the run's): the same, but float32 at least.

    bfloat16 has 8 binary digits: it counts to 256, shares in it are up to 0.4% off, and a sum stands still once it is 256 times
    what is added.

    >>> number_dtype(torch.bfloat16), number_dtype(torch.float64)
    (torch.float32, torch.float64)
    """
    return torch.promote_types(dtype or torch.get_default_dtype(), torch.float32)
