"""FedCOG's small convolutional generator of images, as a pure function of its weights."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from flcog.core.types import Params

LATENT = 100
"""Dimensions of a latent vector."""

_MAPS, _SIDE = 128, 8


def initial_weights(num_channels: int, rng: torch.Generator) -> Params:
    """Random weights, uniform within ``1 / sqrt(fan_in)`` as in torch's own layers."""
    shapes = {
        "linear": (_MAPS * _SIDE**2, LATENT),
        "conv1": (64, _MAPS, 3, 3),
        "conv2": (32, 64, 3, 3),
        "conv3": (num_channels, 32, 3, 3),
    }
    weights: Params = {}
    for name, shape in shapes.items():
        bound = 1 / math.sqrt(math.prod(shape[1:]))
        weights[f"{name}.weight"] = (2 * torch.rand(shape, generator=rng) - 1) * bound
        weights[f"{name}.bias"] = (2 * torch.rand(shape[0], generator=rng) - 1) * bound
    return weights


def images(variables: Params, size: tuple[int, int]) -> Tensor:
    """Images [N, C, *size] of the latent vectors ``variables["noise"]``, [N, 100].

    Follows FedCOG's appendix A.4.2 (https://arxiv.org/abs/2312.05966): a linear layer to 8,192 values, an upsampling and three
    3x3 convolutions. The rest is our choice: the values are 128 maps of 8x8, the layers in between have 64 and 32 channels and
    leaky ReLUs, and nothing follows the last convolution, so that it can reach any range of inputs. The authors' code
    (https://github.com/rui-ye/FedCOG) starts from 256 dimensions, enlarges twice, has 128 and 64 channels in between with
    BatchNorm, and ends in a sigmoid, although normalised inputs leave its range.

    >>> weights = initial_weights(1, torch.Generator().manual_seed(0))
    >>> images({"noise": torch.zeros(2, LATENT), **weights}, (28, 28)).shape
    torch.Size([2, 1, 28, 28])
    """
    maps = F.linear(variables["noise"], variables["linear.weight"], variables["linear.bias"]).unflatten(1, (_MAPS, _SIDE, _SIDE))
    maps = F.interpolate(maps, size)
    for layer in ("conv1", "conv2", "conv3"):
        maps = F.conv2d(F.leaky_relu(maps, 0.2), variables[f"{layer}.weight"], variables[f"{layer}.bias"], padding=1)
    return maps
