"""Lets glibc keep freed memory: large tensors would go back to the kernel each time, and cost page faults when made anew."""

import ctypes
import functools
import sys

import torch

# glibc's <malloc.h>; the threshold's largest legal value is half of its heap size, 32 MiB.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3


_LARGEST_MMAP_THRESHOLD = 32 * 2**20


@functools.cache
def keep_allocations() -> bool:
    """Let glibc keep freed memory for reuse, once per process. Elsewhere this does nothing and returns False.

    A local step's activations are a few MiB that are freed and asked for again at every step: `flcog bench` shows what this is worth.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, _LARGEST_MMAP_THRESHOLD)) and bool(mallopt(_M_TRIM_THRESHOLD, 2**31 - 1))


def peak_memory(device: torch.device) -> int | None:
    """The most bytes that this process has held: a GPU's, as torch has allocated them, else the machine's. None where nobody knows."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    try:
        import resource
    except ImportError:  # Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
