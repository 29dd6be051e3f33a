"""Faster gradients of convolutions by their inputs on CPUs, for methods that generate inputs.

Training never needs a first layer's gradient by its inputs; generating inputs (FedCOG, FedReg, FedDM, DENSE) needs little else.
torch's implementation takes several times as long as the layer's forward pass, because it is optimised for many input channels,
and images have one or three.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.grad import conv2d_weight
from torch.overrides import TorchFunctionMode


class _Convolution(torch.autograd.Function):
    """A convolution of stride 1. Its gradient by its inputs is the outputs' gradient, convolved with the flipped kernels."""

    generate_vmap_rule = True

    @staticmethod
    def forward(inputs: Tensor, weight: Tensor, bias: Tensor | None, padding: tuple[int, int]) -> Tensor:
        return F.conv2d(inputs, weight, bias, padding=padding)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor | None, tuple[int, int]], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[:2])
        ctx.padding = inputs[3]

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        inputs, weight = ctx.saved_tensors
        by_inputs, by_weight, by_bias, _ = ctx.needs_input_grad
        around = [size - 1 - padding for size, padding in zip(weight.shape[2:], ctx.padding, strict=True)]
        return (
            F.conv2d(slope, weight.flip(2, 3).transpose(0, 1), padding=around) if by_inputs else None,
            conv2d_weight(inputs, weight.shape, slope, padding=ctx.padding) if by_weight else None,
            slope.sum((0, 2, 3)) if by_bias else None,
            None,
        )


class InputGradients(TorchFunctionMode):
    """Within this mode, first convolutions on a CPU have a faster gradient by their inputs, equal up to rounding.

    >>> x, layer = torch.randn(2, 1, 8, 8, requires_grad=True), torch.nn.Conv2d(1, 6, 5)
    >>> with InputGradients():
    ...     (slope,) = torch.autograd.grad(layer(x).square().sum(), x)
    >>> torch.allclose(slope, torch.autograd.grad(layer(x).square().sum(), x)[0], atol=1e-5)
    True
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is torch.conv2d and (plain := _plain(*args, **(kwargs or {}))) is not None:
            return _Convolution.apply(*plain)
        return func(*args, **(kwargs or {}))


def _plain(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> tuple[Tensor, Tensor, Tensor | None, tuple[int, int]] | None:
    """The arguments of :class:`_Convolution`, if it computes the same and is faster; otherwise None."""
    if input.device.type != "cpu" or torch.is_autocast_enabled("cpu") or input.ndim != 4 or weight.shape[1] > 4 or groups != 1:
        return None
    if isinstance(padding, str) or any(value != 1 for sizes in (stride, dilation) for value in _pair(sizes)):
        return None
    rows, columns = _pair(padding)
    if rows >= weight.shape[2] or columns >= weight.shape[3]:
        return None
    return input, weight, bias, (rows, columns)


def _pair(value: Any) -> tuple[int, int]:
    if isinstance(value, int):
        return value, value
    return (value[0], value[0]) if len(value) == 1 else (value[0], value[1])
