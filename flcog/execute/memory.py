"""The memory that a batched program of clients may take, and the memory that a client needs."""

from contextlib import nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from flcog.core.global_streams import kept_streams
from flcog.core.processes import Processes
from flcog.core.text import human
from flcog.core.types import Batch
from flcog.execute.job import Job
from flcog.execute.layers import ConvolutionsAsPatches
from flcog.functional.apply import Apply
from flcog.method import Note, Notes

CHUNK_BYTES = {True: 64 * 2**20, False: 8 * 2**30}
"""The memory for a chunk's parameters, gradients, optimiser state and batch: on a CPU (True), where it is the size of a core's cache,
and on an accelerator that does not report its memory, where activations are included."""

CHUNK_SHARE = 0.5
"""The share of a GPU's memory, or of a process's part of it, for a chunk. Backward passes and the extra passes of some methods need the
rest."""

LITTLE = 1 / 8
"""Used memory up to this share of a GPU is ignored, so that chunk sizes are reproducible on a GPU without other users: the memory of
the driver and of small data sets differs by some MiB from run to run."""

STEP = 2**30
"""Used memory is rounded up to a multiple of this number of bytes, so that chunk sizes are mostly reproducible beside other users."""


def chunk_bytes(processes: Processes, notes: Notes) -> int:
    """The memory that a chunk may take, which is the same in every process."""
    device = processes.device
    if device.type != "cuda":
        return CHUNK_BYTES[True] if device.type == "cpu" else CHUNK_BYTES[False] // processes.per_device
    processes.largest(0)  # Wait for the data of all processes before any process measures the free memory.
    free, total = torch.cuda.mem_get_info(device)
    cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)  # by torch, after an earlier run
    taken = _counted(total - free - cached, total)
    if taken:
        notes.add(Note("memory", f"{human(taken)} of the GPU's {human(total)} are taken: clients at a time share what is left"))
    return -processes.largest(-int(CHUNK_SHARE * (total - taken)) // processes.per_device)


def _counted(taken: int, total: int) -> int:
    return 0 if taken <= LITTLE * total else min(total, -(-taken // STEP) * STEP)


def activation_bytes(job: Job, patches: bool = False) -> int:
    """The bytes that autograd stores in a forward pass over one client's batch, in addition to the model.

    They are counted on two samples, so the count is the same in every run. If the pass fails, the count is 0, and the error comes
    again when a client trains.
    """
    model = job.model
    own = {_place(tensor) for tensor in (*model.params.values(), *model.constants.values())}
    kept: dict[int, Any] = {}

    def keep(tensor: Tensor) -> Tensor:
        kept[_place(tensor)] = tensor.untyped_storage()  # kept, because another tensor might reuse its address
        return tensor

    try:
        model = model.on_copy(model.copy_of(model.module))
        buffers = {name: buffer.clone() for name, buffer in model.buffers.items()}
        own |= {_place(value) for value in model.params.values()}
        hooks = saved_tensors_hooks(keep, lambda tensor: tensor)
        batch = Batch(*job.reader(job.reader.federation.train, np.repeat(job.reader.federation.partition.indices[:1], 2)))
        with kept_streams(job.device), torch.enable_grad(), hooks, ConvolutionsAsPatches() if patches else nullcontext():
            Apply(model, buffers).loss(model.params, batch)
    except Exception:
        return 0
    return sum(storage.nbytes() for place, storage in kept.items() if place not in own) * job.rows // 2


def _place(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
