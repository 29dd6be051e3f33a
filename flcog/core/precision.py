"""The precision of single numbers: counts, shares, losses, norms."""

import torch


def number_dtype(dtype: torch.dtype | None = None) -> torch.dtype:
    """What a number is kept in beside tensors of ``dtype`` (by default the run's): the same, but float32 at least.

    bfloat16 has 8 binary digits: it counts to 256, shares in it are up to 0.4% off, and a sum stands still once it is 256 times
    what is added.

    >>> number_dtype(torch.bfloat16), number_dtype(torch.float64)
    (torch.float32, torch.float64)
    """
    return torch.promote_types(dtype or torch.get_default_dtype(), torch.float32)
