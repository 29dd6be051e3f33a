"""Convolutions as products of matrices, for models whose weights differ from client to client."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

_Pair = tuple[int, ...]


class ConvolutionsAsPatches(TorchFunctionMode):
    """Inside, ``conv1d`` and ``conv2d`` are products of the weights with the inputs' patches; users' models stay as they are.

    Under vmap each client has its own weights, and torch makes one convolution of all, with a group for each client, which libraries
    run badly (https://github.com/pytorch/pytorch/issues/70954). A product of matrices becomes one batched product, which they run
    well; the patches take the memory of the inputs times the kernel's size. Convolutions in groups of their own are left alone.
    """

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        dimensions = _DIMENSIONS.get(function)
        if dimensions is None:
            return function(*args, **(kwargs or {}))
        given = _Given(*args, **(kwargs or {}))
        given.padding = _in_numbers(given, dimensions)
        if given.groups != 1 or isinstance(given.padding, str) or given.input.ndim != dimensions + 2:
            return function(*args, **(kwargs or {}))
        if dimensions == 2:
            return _conv2d(given)
        # One row of pixels.
        stride, padding, dilation = (_tuple(value, 1) for value in (given.stride, given.padding, given.dilation))
        weight, row = given.weight.unsqueeze(2), given.input.unsqueeze(2)
        return _conv2d(_Given(row, weight, given.bias, (1, *stride), (0, *padding), (1, *dilation))).squeeze(2)


class _Given:
    """A convolution's arguments, as torch names them."""

    def __init__(
        self,
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
    ) -> None:
        self.input, self.weight, self.bias = input, weight, bias
        self.stride, self.padding, self.dilation, self.groups = stride, padding, dilation, groups


_DIMENSIONS = {torch.conv1d: 1, torch.conv2d: 2, functional.conv1d: 1, functional.conv2d: 2}


def _conv2d(given: _Given) -> Tensor:
    stride, padding, dilation = (_tuple(value, 2) for value in (given.stride, given.padding, given.dilation))
    kernel = given.weight.shape[2:]
    size = [(given.input.shape[2 + d] + 2 * padding[d] - dilation[d] * (kernel[d] - 1) - 1) // stride[d] + 1 for d in range(2)]
    patches: Tensor = _Patches.apply(given.input, tuple(kernel), dilation, padding, stride)  # type: ignore[no-untyped-call]
    outputs = (given.weight.flatten(1) @ patches).unflatten(2, size)
    return outputs if given.bias is None else outputs + given.bias.view(-1, 1, 1)


class _Patches(torch.autograd.Function):
    """The numbers of ``functional.unfold``, copied at once: on a GPU torch launches a kernel for each image of each client.

    Its gradient, which torch has for all images at once, is that of ``functional.unfold`` to the bit.
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


def _in_numbers(given: _Given, dimensions: int) -> Any:
    """Padding that torch knows by a word; the word itself where one side would need more than the other."""
    if given.padding == "valid":
        return 0
    if given.padding != "same":
        return given.padding
    dilation = _tuple(given.dilation, dimensions)
    more = [dilation[d] * (given.weight.shape[2 + d] - 1) for d in range(dimensions)]
    return "same" if any(pixels % 2 for pixels in more) else tuple(pixels // 2 for pixels in more)


def _tuple(value: Any, length: int) -> tuple[int, ...]:
    return (value,) * length if isinstance(value, int) else tuple(value) * (length if len(value) == 1 else 1)
