"""Standardisation of features: their statistics, and a warning where 32-bit floats are too coarse for it."""

import warnings
from collections.abc import Sequence

import numpy as np
from torch import Tensor

LARGEST_OFFSET = 1e5
"""Means above this many standard deviations are warned of: 32-bit floats then leave fewer than about 100 steps per deviation."""


def standardisation(features: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each column; columns that never change keep their scale."""
    std = features.double().std(0, correction=0)
    std[std == 0] = 1
    return tuple(features.double().mean(0).tolist()), tuple(std.tolist())


def warn_of_large_offsets(features: np.ndarray, where: str, names: Sequence[str]) -> None:
    """Warn of columns with a mean that is so large beside their deviation that 32-bit floats blur their values.

    Args:
        features: [N, F], as precise as they were given.
        where: whose features, for the warning.
        names: the names of the features.
    """
    mean, std = features.mean(0, dtype=np.float64), features.std(0, dtype=np.float64)
    blurred = np.flatnonzero((features.max(0) > features.min(0)) & (np.abs(mean) > LARGEST_OFFSET * std))
    if len(blurred):
        first, more = blurred[0], f" (and {len(blurred) - 1} more)" if len(blurred) > 1 else ""
        step = np.spacing(np.float32(abs(mean[first]))) / std[first]
        warnings.warn(
            f"{where}: {names[first]}{more} has mean {mean[first]:.4g} and standard deviation {std[first]:.4g}, and 32-bit floats round it "
            f"to steps of {step:.2g} deviations: subtract a constant such as its mean before, in 64 bits",
            stacklevel=2,
        )
