"""Replaces layers that are slow in torch, or fail, when they are batched over clients."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from flcog.execute.patches import ConvolutionsAsPatches
from flcog.functional.model_function import ModelFunction


class NormsInOneType(TorchFunctionMode):
    """Inside, a batch norm of bfloat16 inputs with float32 weights and statistics computes in float32, and returns bfloat16.

    Mixed precision has such norms. torch's own kernel computes them in float32 too. But vmap calls it without the weights; it then
    expects bfloat16 statistics and fails.
    """

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = kwargs or {}
        if function not in (functional.batch_norm, torch.batch_norm) or not args:
            return function(*args, **named)
        inputs, *others = args
        kept = [value.dtype for value in (*others, *named.values()) if isinstance(value, Tensor)]
        return function(inputs.to(kept[0] if kept else inputs.dtype), *others, **named).to(inputs.dtype)


def batched_layers(model: ModelFunction, patches: bool) -> Callable[[], AbstractContextManager[Any]]:
    """A context manager for the computations of batched clients."""
    norms = model.mixes_rows and _is_mixed(model)
    if patches and norms:
        return _both
    return ConvolutionsAsPatches if patches else NormsInOneType if norms else nullcontext


def _is_mixed(model: ModelFunction) -> bool:
    with model.autocast():
        return any(torch.is_autocast_enabled(device) for device in {value.device.type for value in model.params.values()})


@contextmanager
def _both() -> Iterator[None]:
    with ConvolutionsAsPatches(), NormsInOneType():
        yield
