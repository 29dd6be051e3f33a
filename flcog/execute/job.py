"""The job of an executor: the facts that its choice depends on, such as the memory that a batched program of clients may take."""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from flcog.client.model import ClientModel
from flcog.core.global_streams import kept_streams
from flcog.core.processes import Processes
from flcog.core.types import Batch
from flcog.data.reading import Reader
from flcog.execute.layers import ConvolutionsAsPatches
from flcog.functional.apply import Apply
from flcog.functional.model_function import ModelFunction
from flcog.settings import Compile


@dataclass(frozen=True)
class Job:
    """The facts that the choice of an executor depends on.

    ``clients`` is the number that one process trains in a round, ``chunk_size`` the number at a time, if the user has set it, and
    ``memory`` the bytes that a batched program may take otherwise. ``lightning`` makes the trainer of clients in Lightning's loops, of
    a learner.
    """

    client: ClientModel
    reader: Reader
    batch_size: int
    clients: int
    chunk_size: int | None
    memory: int
    lightning: Callable[[Any], Any]
    compile: Compile = False

    @property
    def model(self) -> ModelFunction:
        return self.client.function

    @property
    def on_cpu(self) -> bool:
        return self.device.type == "cpu"

    @property
    def device(self) -> torch.device:
        return next(iter(self.model.params.values())).device

    @property
    def rows(self) -> int:
        """The number of rows in a batch, unless it is the last of an epoch."""
        return min(self.batch_size, int(self.reader.federation.partition.sizes.max()))

    @property
    def num_params(self) -> int:
        return sum(p.numel() for p in self.model.params.values())


CHUNK_BYTES = {True: 64 * 2**20, False: 8 * 2**30}
"""The memory for a chunk's parameters, gradients, optimiser state and batch: on a CPU (True), where it is the size of a core's cache,
and on an accelerator that does not report its memory, where activations are included."""

CHUNK_SHARE = 0.5
"""The share of a GPU's memory, or of a process's part of it, for a chunk. Backward passes and the extra passes of some methods need the
rest."""


def chunk_bytes(processes: Processes) -> int:
    """The memory that a chunk may take, which is the same in every process and in a resumed run: it depends on no other user."""
    device = processes.device
    if device.type != "cuda":
        return CHUNK_BYTES[True] if device.type == "cpu" else CHUNK_BYTES[False] // processes.per_device
    total = torch.cuda.get_device_properties(device).total_memory
    return -processes.largest(-int(CHUNK_SHARE * total) // processes.per_device)


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
