"""Layers that are slow in torch, or fail, when they are batched over clients: convolutions, and norms in mixed precision."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from flcog.functional.model_function import ModelFunction

_Pair = tuple[int, ...]


def batched_layers(model: ModelFunction, patches: bool) -> Callable[[], AbstractContextManager[Any]]:
    """A context manager for the computations of batched clients."""
    with model.autocast():
        mixed = any(torch.is_autocast_enabled(device) for device in {value.device.type for value in model.params.values()})
    modes = [ConvolutionsAsPatches] * patches + [NormsInOneType] * (mixed and model.mixes_rows)

    @contextmanager
    def layers() -> Iterator[None]:
        with ExitStack() as stack:
            for mode in modes:
                stack.enter_context(mode())
            yield

    return layers if modes else nullcontext


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


class ConvolutionsAsPatches(TorchFunctionMode):
    """Inside, ``conv1d`` and ``conv2d`` are products of the weights with the inputs' patches; users' models stay as they are.

    Under vmap each client has its own weights, and torch runs a single convolution with a group for each client, which is slow
    (https://github.com/pytorch/pytorch/issues/70954). A product of matrices becomes one batched product, which is fast. The patches
    take the memory of the inputs times the kernel's size. Convolutions that have groups themselves, or ``same`` padding, stay as they are.
    """

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        dimensions = _DIMENSIONS.get(function)
        outputs = None if dimensions is None else _convolved(dimensions, *args, **(kwargs or {}))
        return function(*args, **(kwargs or {})) if outputs is None else outputs


_DIMENSIONS = {torch.conv1d: 1, torch.conv2d: 2, functional.conv1d: 1, functional.conv2d: 2}


def _convolved(
    dimensions: int,
    input: Tensor,
    weight: Tensor,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor | None:
    """The outputs of a convolution, whose arguments have torch's names; None if it stays as it is."""
    padding = 0 if padding == "valid" else padding
    if groups != 1 or isinstance(padding, str) or input.ndim != dimensions + 2:
        return None
    stride, padding, dilation = (
        (value,) * dimensions if isinstance(value, int) else tuple(value) for value in (stride, padding, dilation)
    )
    if dimensions == 1:  # one row of pixels
        input, weight, stride, padding, dilation = (
            input.unsqueeze(2),
            weight.unsqueeze(2),
            (1, *stride),
            (0, *padding),
            (1, *dilation),
        )
    kernel = tuple(weight.shape[2:])
    size = [(input.shape[2 + d] + 2 * padding[d] - dilation[d] * (kernel[d] - 1) - 1) // stride[d] + 1 for d in range(2)]
    patches: Tensor = _Patches.apply(input, kernel, dilation, padding, stride)  # type: ignore[no-untyped-call]
    outputs = (weight.flatten(1) @ patches).unflatten(2, size)
    outputs = outputs if bias is None else outputs + bias.view(-1, 1, 1)
    return outputs.squeeze(2) if dimensions == 1 else outputs


class _Patches(torch.autograd.Function):
    """The numbers of ``functional.unfold``, copied in one operation.

    On a GPU torch's own function launches a kernel for each image of each client. The gradient is computed for all images at once, and
    equals the gradient of ``functional.unfold`` bit for bit.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(images: Tensor, kernel: _Pair, dilation: _Pair, padding: _Pair, stride: _Pair) -> Tensor:
        images = functional.pad(images, (padding[1], padding[1], padding[0], padding[0])) if any(padding) else images
        for d in range(2):
            images = images.unfold(2 + d, dilation[d] * (kernel[d] - 1) + 1, stride[d])[..., :: dilation[d]]
        return images.permute(0, 1, 4, 5, 2, 3).flatten(4).flatten(1, 3)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        images, *ctx.layout = inputs
        ctx.size = images.shape[2:]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return functional.fold(gradient, ctx.size, *ctx.layout), None, None, None, None
