"""How much memory one batched program of clients may take."""

import warnings
from collections.abc import Callable

import torch

from flcog.core.processes import Processes
from flcog.core.text import human
from flcog.method import MemoryNote, Notes

CHUNK_BYTES = {True: 64 * 2**20, False: 8 * 2**30}
"""Memory for one chunk's parameters, gradients, optimiser state and batch, on a CPU and on an accelerator that does not say what it has,
where activations count too. On a CPU these are caches, of which each core has its own."""

CHUNK_SHARE = 0.5
"""The same as a share of a GPU's memory, or of a process's part of it: what a backward pass makes, and the further passes of some
methods, need the rest."""

LITTLE = 1 / 8
"""What may be taken of a GPU's memory and does not count. So runs of one configuration are alike, to the bit, on a GPU that nobody else
uses: a driver's own needs, and small sets of data, differ by some MiB from one run to the next."""

STEP = 2**30
"""Bytes to which what is taken is rounded up, so that runs are mostly alike on a GPU where it counts, too."""


def chunk_bytes(processes: Processes, notes: Notes) -> int:
    """What a chunk may take, the same in every process.

    Args:
        processes: which of them share the device. Their data are on it already.
        notes: where a note says that a GPU is in use otherwise.
    """
    device = processes.device
    if device.type != "cuda":
        return CHUNK_BYTES[True] if device.type == "cpu" else CHUNK_BYTES[False] // processes.per_device
    processes.largest(0)  # until all have come, none asks what the others' data have left
    free, total = torch.cuda.mem_get_info(device)
    kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)  # by torch, from an earlier run, for the next
    taken = _counted(total - free - kept, total)
    if taken:
        notes.add(MemoryNote(f"{human(taken)} of the GPU's {human(total)} are taken: clients at a time share what is left"))
    return -processes.largest(-int(CHUNK_SHARE * (total - taken)) // processes.per_device)


def _counted(taken: int, total: int) -> int:
    return 0 if taken <= LITTLE * total else min(total, -(-taken // STEP) * STEP)


def back_off(executor: str, too_many: int, clients: int, make_room: Callable[[], None]) -> None:
    """Warn that memory ran out and that fewer clients train at a time from here on, and free memory.

    Args:
        executor: the name of the executor.
        too_many: the number of clients for which memory ran out.
        clients: the number of clients that train at a time from here on.
        make_room: drops tensors that were made for more clients.
    """
    warnings.warn(
        f"executor={executor}: {too_many} clients at a time do not fit into memory, {clients} are tried from here on; "
        f"trainer.chunk_size={clients} says so from the start",
        stacklevel=3,
    )
    make_room()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
