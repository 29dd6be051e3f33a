"""Lets glibc keep freed memory.

Otherwise large tensors would be returned to the kernel each time, and the next allocation would cost page faults.
"""

import ctypes
import functools
import sys

import torch

# glibc's <malloc.h>; the threshold's largest legal value is half of its heap size, 32 MiB.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3


_LARGEST_MMAP_THRESHOLD = 32 * 2**20


@functools.cache
def keep_allocations() -> bool:
    """Make glibc keep freed memory for reuse, once per process. Without glibc this does nothing and returns False.

    A local step frees and allocates a few MiB of activations. `flcog bench` shows the gain.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, _LARGEST_MMAP_THRESHOLD)) and bool(mallopt(_M_TRIM_THRESHOLD, 2**31 - 1))


def peak_memory(device: torch.device) -> int | None:
    """Return the peak memory of this process in bytes: torch's on a GPU, otherwise the machine's. None if it is unknown."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    try:
        import resource
    except ImportError:  # Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
