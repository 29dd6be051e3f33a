"""FedCOG's generation: inputs optimised until the global model recognises given labels in them and the local one disagrees."""

import math
import operator
from collections.abc import Callable
from functools import partial
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from flcog.callbacks.parts.distillation import kl_divergence, log_probabilities
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


Model = Callable[[Tensor], Tensor]
"""From inputs [B, ...] to outputs (logits) [B, C]."""

Divergence = Literal["paper", "code"]


def target_loss(outputs: Tensor, labels: Tensor) -> Tensor:
    """Mean cross-entropy to classes [B], or mean binary cross-entropy to multi-hot rows [B, C].

    >>> round(float(target_loss(torch.zeros(1, 4), torch.tensor([2]))), 4)  # log 4
    1.3863
    """
    outputs = outputs.to(torch.promote_types(outputs.dtype, torch.float32))
    if labels.ndim == 1:
        return F.cross_entropy(outputs, labels)
    return F.binary_cross_entropy_with_logits(outputs, labels.to(outputs.dtype))


def disagreement(first: Tensor, second: Tensor, multilabel: bool = False, divergence: Divergence = "paper") -> Tensor:
    """One minus the mean Jensen-Shannon divergence of two models' outputs: 1 if they agree, 1 - log 2 if they exclude each other.

    With p and q their probabilities and m = (p + q) / 2, eq. 2 of FedCOG (https://arxiv.org/abs/2312.05966) is::

        1 - 1/2 [KL(p || m) + KL(q || m)]

    The authors' code (https://github.com/rui-ye/FedCOG) reverses the divergences, KL(m || p) and KL(m || q), with every
    probability clamped to [0.01, 0.99] and their mean below 1, where its gradient ends: ``divergence="code"``. For several labels
    per sample, p and q are each label's probabilities to be absent or present, averaged over the labels.

    >>> opposite = torch.tensor([[50.0, 0.0]])
    >>> round(float(disagreement(opposite, -opposite)), 4)
    0.3069
    """
    log_p, log_q = log_probabilities(first, multilabel), log_probabilities(second, multilabel)
    if divergence == "paper":
        log_m = torch.logaddexp(log_p, log_q) - math.log(2)
        return 1 - (kl_divergence(log_p, log_m) + kl_divergence(log_q, log_m)) / 2
    p, q = log_p.exp(), log_q.exp()
    log_p, log_q, log_m = (value.clamp(0.01, 0.99).log() for value in (p, q, (p + q) / 2))
    return 1 - ((kl_divergence(log_m, log_p) + kl_divergence(log_m, log_q)) / 2).clamp(0, 1)


def adam(
    gradient: Callable[[Params], Params], variables: Params, steps: int, lr: float, betas: tuple[float, float], eps: float = 1e-8
) -> Params:
    """``torch.optim.Adam`` as a pure function, which vmap can run on many clients at once."""
    mean, square = ({name: torch.zeros_like(value) for name, value in variables.items()} for _ in range(2))
    for step in range(1, steps + 1):
        rate, correction = lr / (1 - betas[0] ** step), 1 - betas[1] ** step
        slopes, moved = gradient(variables), {}
        for name, slope in slopes.items():
            mean[name] = betas[0] * mean[name] + (1 - betas[0]) * slope
            square[name] = betas[1] * square[name] + (1 - betas[1]) * slope.square()
            moved[name] = variables[name] - rate * mean[name] / ((square[name] / correction).sqrt() + eps)
        variables = moved
    return variables


@torch.no_grad()
def generate(
    noise: Tensor,
    labels: Tensor,
    global_model: Model,
    local_model: Model | None = None,
    lambda_dis: Tensor | float = 0.1,
    steps: int = 100,
    lr: float = 0.01,
    betas: tuple[float, float] = (0.5, 0.9),
    batch_size: int | None = None,
    divergence: Divergence = "paper",
    weights: Params | None = None,
    decode: Callable[[Params], Tensor] = operator.itemgetter("noise"),
) -> Tensor:
    """Inputs, one for each label, that the global model recognises and the local model sees differently (eq. 1 of FedCOG).

    Adam changes the inputs x themselves, which start as ``noise``, in ``steps`` steps::

        min_x  CE(global(x), y) + lambda_dis * disagreement(global(x), local(x))

    or latent noise z and the weights of a generator, with x = decode(z, weights). The function is pure and runs under vmap. The
    models' parameters get no gradient; put BatchNorm into evaluation mode.

    Ye et al., Fake It Till Make It: Federated Learning with Consensus-Oriented Generation, ICLR 2024,
    https://arxiv.org/abs/2312.05966.

    Returns:
        x of the last step, [N, ...].

    Example:
        >>> x = generate(torch.zeros(2, 2), torch.tensor([0, 1]), global_model=lambda x: x, steps=3)
        >>> bool((x.diagonal() > 0).all())
        True
    """

    def loss(variables: Params, labels: Tensor) -> Tensor:
        inputs = decode(variables)
        outputs = global_model(inputs)
        if local_model is None:
            return target_loss(outputs, labels)
        alike = disagreement(outputs, local_model(inputs), labels.ndim == 2, divergence)
        return target_loss(outputs, labels) + lambda_dis * alike

    size, gradient, made = batch_size or len(noise), torch.func.grad(loss), []
    for start, wanted in zip(noise.split(size), labels.split(size), strict=True):
        variables = adam(partial(gradient, labels=wanted), {"noise": start} | (weights or {}), steps, lr, betas)
        made.append(decode(variables))
    return torch.cat(made)
