"""A device other than the CPU, for machines without an accelerator. An operation cannot mix its tensors with tensors on the CPU.

Like Apple's ``mps``, it has no float64. It computes on the CPU behind the scenes, and counts the operations that would wait for an
accelerator: copies to it or from it, and numbers that Python reads.
"""

import functools
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils import backend_registration

import flcog.run.opening
from flcog.core import precision
from flcog.core.processes import Processes

NAME = "fake"

waits: Counter[str] = Counter()
"""Copies between the CPU and the device, and numbers read from it, since this was cleared."""


INDEXING = ("index", "index_put", "index_put_", "_index_put_impl_")

READING = ("_local_scalar_dense", "is_nonzero", "equal", "nonzero", "masked_select", "_unique2")
"""Operations whose result, or its shape, Python must know."""


class OnDevice(torch.Tensor):
    """A tensor on the device. Its numbers are in ``here``, a tensor on the CPU."""

    here: Tensor

    @staticmethod
    def __new__(cls, here: Tensor) -> "OnDevice":
        if here.dtype == torch.float64 and not _has_float64:
            raise TypeError("the device has no float64")
        with torch.inference_mode(False):  # torch makes no wrapper of an inference tensor in inference mode
            made = torch.Tensor._make_wrapper_subclass(
                cls, here.size(), strides=here.stride(), dtype=here.dtype, device=torch.device(NAME, 0)
            )
        made.here = here
        return made

    @classmethod
    def __torch_dispatch__(cls, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _compute(op, *args, **(kwargs or {}))

    def tolist(self) -> Any:
        waits["numbers read"] += 1
        return self.here.tolist()

    def untyped_storage(self) -> Any:
        return self.here.untyped_storage()

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.here.__reduce_ex__(protocol)


def _compute(op: Any, *args: Any, **kwargs: Any) -> Any:
    """Compute an operation of torch with arguments or a result on the device."""
    tensors = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    inside = [tensor for tensor in tensors if isinstance(tensor, OnDevice)]
    outside = [tensor for tensor in tensors if not isinstance(tensor, OnDevice) and tensor.ndim]
    name, device = op.name().removeprefix("aten::").split(".")[0], kwargs.get("device")
    if outside and name not in ("_to_copy", "copy_", "_copy_from"):
        raise RuntimeError(f"expected all tensors to be on the same device: {name}")
    leaves = bool(inside) and device is not None and device.type != NAME
    waits["copies"] += bool(outside) or leaves
    chosen_by_mask = name in INDEXING and any(index is not None and index.dtype == torch.bool for index in args[1])
    waits["numbers read"] += name in READING or chosen_by_mask
    if device is not None:
        kwargs |= {"device": torch.device("cpu")} | ({"pin_memory": False} if "pin_memory" in kwargs else {})
    args, kwargs = pytree.tree_map(lambda leaf: leaf.here if isinstance(leaf, OnDevice) else leaf, (args, kwargs))
    if name == "_copy_from":
        return args[1].copy_(args[0])
    with _drawing_from_its_stream(op, kwargs):
        results = op(*args, **kwargs)
    known = {id(tensor.here): tensor for tensor in tensors if isinstance(tensor, OnDevice)}
    if leaves or (name == "copy_" and not isinstance(tensors[0], OnDevice)):
        return results
    return pytree.tree_map_only(Tensor, lambda tensor: known[id(tensor)] if id(tensor) in known else OnDevice(tensor), results)


_stream = torch.Generator()


@contextmanager
def _drawing_from_its_stream(op: Any, kwargs: Any) -> Iterator[None]:
    """Draw random numbers from the device's own generator, which is independent of the CPU's."""
    if torch.Tag.nondeterministic_seeded not in op.tags or kwargs.get("generator") is not None:
        yield
        return
    cpus = torch.default_generator.get_state()
    torch.default_generator.set_state(_stream.get_state())
    try:
        yield
    finally:
        _stream.set_state(torch.default_generator.get_state())
        torch.default_generator.set_state(cpus)


class _FromPython(TorchFunctionMode):
    """Handles tensors that are made of Python's numbers: torch makes them on the CPU and copies them without an operation to count."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if function is Tensor.new_tensor and isinstance(args[0], OnDevice):
            waits["copies"] += 1
            return OnDevice(args[0].here.new_tensor(*args[1:], **kwargs))
        device = kwargs.get("device")
        if function is torch.arange:  # torch enlarges an empty tensor for it, and the wrapper keeps the old shape
            made = function(*args, **kwargs)
            return OnDevice(made.here) if type(made) is OnDevice and made.shape != made.here.shape else made
        if function not in (torch.tensor, torch.as_tensor) or device is None or torch.device(device).type != NAME:
            return function(*args, **kwargs)
        if isinstance(args[0], Tensor):
            return args[0].to(device, kwargs.get("dtype"))
        waits["copies"] += 1
        return OnDevice(function(*args, **kwargs | {"device": "cpu"}))


IS_POSSIBLE = hasattr(backend_registration, "_setup_privateuseone_for_python_backend") and not torch.cuda.is_available()
"""Whether torch takes a device that is written in Python. Version 2.7 does not, and a process has one kind of accelerator: with this
device registered, torch pins memory for it instead of for a GPU. ``tests/engine/test_gpu.py`` is for machines with a GPU."""


@functools.cache
def register() -> torch.library.Library:
    """Register the device with torch, once per process and before its first backward pass, which looks for devices."""
    backend_registration._setup_privateuseone_for_python_backend(NAME)
    backend = getattr(torch, NAME)
    backend.get_rng_state, backend.set_rng_state = lambda *_: _stream.get_state(), lambda state, *_: _stream.set_state(state)
    backend.manual_seed = _stream.manual_seed
    backend.synchronize = lambda: waits.update(["the end of all work"])
    library = torch.library.Library("_", "IMPL")
    library.fallback(_compute, "PrivateUse1")
    return library


def _pinned(tensor: Tensor) -> Tensor:
    """Pin a tensor as torch does: it must be on the CPU, and its strides are kept."""
    if tensor.device.type != "cpu":
        raise RuntimeError(f"cannot pin '{tensor.type()}' only dense CPU tensors can be pinned")
    waits["pinned"] += 1
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype).copy_(tensor)


_has_float64 = False


@contextmanager
def computing_there(like_cuda: bool = False) -> Iterator[torch.device]:
    """Runs that are opened in this context compute on the device.

    Args:
        like_cuda: whether the device has float64, and copies from pinned memory.
    """
    global _has_float64
    if not IS_POSSIBLE:
        pytest.skip(f"torch {torch.__version__} takes no device that is written in Python beside this machine's accelerator")
    register()
    device = torch.device(NAME, 0)
    with _FromPython(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(flcog.run.opening, "processes_of", lambda fabric, together=False: Processes(0, 1, device))
        if like_cuda:
            patch.setattr(precision, "pins", lambda device: device.type == NAME)
            patch.setattr(Tensor, "pin_memory", _pinned)
        precision._has_float64.cache_clear()
        _has_float64 = like_cuda
        try:
            yield device
        finally:
            _has_float64 = False
            precision._has_float64.cache_clear()
