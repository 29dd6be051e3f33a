"""Inside InputGradients, the gradients of convolutions equal torch's own."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flcog.callbacks.parts.input_gradient import InputGradients


def loss(inputs: Tensor, weight: Tensor, bias: Tensor | None, padding: int) -> Tensor:
    return F.conv2d(inputs, weight, bias, padding=padding).pow(3).sum()


def is_ours(outputs: Tensor) -> bool:
    """Whether flcog computes the gradient of these outputs."""
    return type(outputs.grad_fn).__name__ == "_ConvolutionBackward"


@pytest.mark.parametrize("padding", [0, 1, 2])
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("kernel", [(3, 3), (3, 5)])
def test_the_gradient_is_torchs(padding: int, channels: int, kernel: tuple[int, int]) -> None:
    torch.manual_seed(0)
    inputs, weight, bias = torch.randn(2, channels, 9, 8), torch.randn(6, channels, *kernel), torch.randn(6)
    arguments = tuple(value.double().requires_grad_() for value in (inputs, weight, bias))
    expected = torch.autograd.grad(loss(*arguments, padding), arguments)
    with InputGradients():
        got = torch.autograd.grad(loss(*arguments, padding), arguments)
        assert is_ours(F.conv2d(*arguments, padding=padding))
    for mine, torchs in zip(got, expected, strict=True):
        torch.testing.assert_close(mine, torchs)


def test_clients_at_once_have_their_own_gradients() -> None:
    inputs, weights = torch.randn(3, 2, 1, 8, 8).double(), torch.randn(3, 6, 1, 5, 5).double()
    gradient = torch.func.grad(loss, argnums=(0, 1))
    with InputGradients():
        got = torch.func.vmap(lambda x, w: gradient(x, w, None, 2))(inputs, weights)
        shared = torch.func.vmap(lambda x: gradient(x, weights[0], None, 2))(inputs)
    for client in range(3):
        for mine, torchs in zip(got, gradient(inputs[client], weights[client], None, 2), strict=True):
            torch.testing.assert_close(mine[client], torchs)
        for mine, torchs in zip(shared, gradient(inputs[client], weights[0], None, 2), strict=True):
            torch.testing.assert_close(mine[client], torchs)


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv2d(1, 6, 5, stride=2),
        nn.Conv2d(1, 6, 3, dilation=2),
        nn.Conv2d(2, 6, 3, groups=2),
        nn.Conv2d(1, 6, 3, padding="same"),
        nn.Conv2d(1, 6, 3, padding=4),
        nn.Conv2d(6, 8, 3),
    ],
    ids=str,
)
def test_other_layers_are_left_to_torch(layer: nn.Conv2d) -> None:
    inputs = torch.randn(2, layer.in_channels, 9, 9)
    with InputGradients():
        assert not is_ours(layer(inputs))
