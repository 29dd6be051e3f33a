"""How much memory a client's forward pass takes until its backward pass has used it."""

from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from flcog.apply import apply_of
from flcog.core.randomness import put_back, streams
from flcog.core.trees import map_leaves
from flcog.core.types import Batch
from flcog.execute.job import Job
from flcog.execute.patches import ConvolutionsAsPatches


def activation_bytes(job: Job, patches: bool = False) -> int:
    """Bytes that autograd keeps of a pass over one client's batch, beside the model itself.

    They are counted on two samples. So the count is the same in every run, which what a device has free is not. Where the pass fails
    it is 0: the error is raised again once a client trains.

    Args:
        job: whose pass.
        patches: whether convolutions are products of matrices, whose patches are kept.
    """
    model, before = job.model, streams(job.device)
    own = {_place(tensor) for tensor in (*model.params.values(), *model.constants.values())}
    kept: dict[int, Any] = {}

    def keep(tensor: Tensor) -> Tensor:
        kept[_place(tensor)] = tensor.untyped_storage()  # held, or its place might be another's next
        return tensor

    batch = Batch(*(map_leaves(lambda leaf: torch.cat([leaf, leaf]), part) for part in (job.sample, job.targets)))
    buffers = {name: buffer.clone() for name, buffer in model.buffers.items()}
    try:
        hooks = saved_tensors_hooks(keep, lambda tensor: tensor)
        with torch.enable_grad(), hooks, ConvolutionsAsPatches() if patches else nullcontext():
            apply_of(model, buffers).loss(model.params, batch)
    except Exception:
        return 0
    finally:
        put_back(job.device, before)
    return sum(storage.nbytes() for place, storage in kept.items() if place not in own) * job.rows // 2


def _place(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
