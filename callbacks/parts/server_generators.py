"""Networks that a server trains against its clients' models (FedGen, DENSE), and helpers of methods that train at the server."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flcog.core.types import Params
from flcog.method import ClientView


def one_hot(labels: Tensor, num_classes: int, dtype: torch.dtype) -> Tensor:
    """Rows [B, num_classes] with a 1 at each label (torch's own function reads the labels' values, so vmap refuses it)."""
    return (labels[:, None] == torch.arange(num_classes, device=labels.device)).to(dtype)


def feature_generator(noise_dim: int, num_classes: int, hidden: int, num_features: int, seed: int) -> Params:
    """A fresh generator of features by class: two linear layers with BatchNorm between them."""
    rng, values = torch.Generator().manual_seed(seed), {}
    for name, rows, columns in (("first", hidden, noise_dim + num_classes), ("last", num_features, hidden)):
        for part, shape in (("weight", (rows, columns)), ("bias", (rows,))):
            # Always drawn in float32, because the run's precision would change the numbers.
            values[f"{name}.{part}"] = (2 * torch.rand(shape, generator=rng, dtype=torch.float32) - 1) / columns**0.5
    norm = {"weight": 1.0, "bias": 0.0, "mean": 0.0, "var": 1.0}
    return values | {f"norm.{name}": torch.full((hidden,), value) for name, value in norm.items()}


def features_of(generator: Params, noise: Tensor, labels: Tensor, training: bool = False) -> Tensor:
    """Features [B, num_features] for noise [B, noise_dim] and labels [B]; training updates BatchNorm's statistics in place."""
    num_classes = generator["first.weight"].shape[1] - noise.shape[1]
    noise = noise.to(generator["first.weight"].dtype)
    inputs = torch.cat([noise, one_hot(labels, num_classes, noise.dtype)], 1)
    hidden = F.linear(inputs, generator["first.weight"], generator["first.bias"])
    mean, var, weight, bias = (generator[f"norm.{part}"] for part in ("mean", "var", "weight", "bias"))
    hidden = F.batch_norm(hidden, mean, var, weight, bias, training)
    return F.linear(hidden.relu(), generator["last.weight"], generator["last.bias"])


def input_generator(shape: tuple[int, ...], latent: int, width: int, rng: torch.Generator) -> nn.Module:
    """From noise [B, latent] to inputs [B, *shape]: three convolutions for images, a hidden layer for rows of a table.

    The server does not know how clients normalise their inputs, so the last layer's outputs have mean 0 and variance 1.

    >>> input_generator((1, 28, 28), latent=16, width=4, rng=torch.Generator())(torch.randn(2, 16)).shape
    torch.Size([2, 1, 28, 28])
    """
    with torch.random.fork_rng(devices=[]):  # the layers' first weights, which are drawn again below
        if len(shape) == 1:
            rows = [nn.Linear(latent, width), nn.BatchNorm1d(width), nn.LeakyReLU(0.2), nn.Linear(width, shape[0])]
            network = nn.Sequential(*rows, nn.BatchNorm1d(shape[0], affine=False))
        else:
            sides = [-(-side // 4) for side in shape[1:]]
            blocks: list[nn.Module] = [nn.Linear(latent, 2 * width * sides[0] * sides[1]), nn.Unflatten(1, (2 * width, *sides))]
            blocks += [nn.BatchNorm2d(2 * width), nn.Upsample(scale_factor=2)]
            blocks += [nn.Conv2d(2 * width, 2 * width, 3, padding=1, bias=False), nn.BatchNorm2d(2 * width), nn.LeakyReLU(0.2)]
            blocks += [nn.Upsample(size=tuple(shape[1:]))]
            blocks += [nn.Conv2d(2 * width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.LeakyReLU(0.2)]
            network = nn.Sequential(*blocks, nn.Conv2d(width, shape[0], 3, padding=1), nn.BatchNorm2d(shape[0], affine=False))
    with torch.no_grad():
        for name, value in network.named_parameters():
            # BatchNorm's scales start near 1, all other weights near 0.
            value.zero_() if name.endswith("bias") else value.normal_(float(value.ndim == 1), 0.02, generator=rng)
    return network


@contextmanager
def batch_norm_distances(network: nn.Module) -> Iterator[list[Tensor]]:
    """Collects, for every pass through a BatchNorm layer, the distance of the batch's statistics from the layer's own.

    ``||mean(x) - mu|| + ||var(x) - sigma^2||``; Yin et al., Dreaming to Distill, CVPR 2020, https://arxiv.org/abs/1912.08795.
    """
    distances: list[Tensor] = []

    def compare(layer: Any, inputs: tuple[Tensor, ...]) -> None:
        variance, mean = torch.var_mean(inputs[0].transpose(0, 1).flatten(1), dim=1, correction=0)
        distances.append((mean - layer.running_mean).norm() + (variance - layer.running_var).norm())

    layers = [layer for layer in network.modules() if isinstance(layer, nn.modules.batchnorm._BatchNorm)]
    handles = [layer.register_forward_pre_hook(compare) for layer in layers if layer.track_running_stats]
    try:
        yield distances
    finally:
        for handle in handles:
            handle.remove()


def random_view(images: Tensor, crop: int, flip: bool, rng: torch.Generator) -> Tensor:
    """Each image [B, C, H, W] shifted by up to ``crop`` pixels and, with ``flip``, mirrored at random; tables unchanged."""
    if images.ndim != 4:
        return images
    (count, _, height, width), device = images.shape, images.device
    top, left = torch.randint(2 * crop + 1, (2, count, 1), generator=rng).to(device)
    rows, columns = top + torch.arange(height, device=device), left + torch.arange(width, device=device)
    if flip:
        mirrored = torch.rand(count, 1, generator=rng).to(device) < 0.5
        columns = torch.where(mirrored, columns.flip(1), columns)
    each = torch.arange(count, device=device)[:, None, None]
    return F.pad(images, [crop] * 4)[each, :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)


def descend(optimizer: torch.optim.Optimizer, leaves: Iterable[Tensor], loss: Tensor) -> None:
    """One step of ``optimizer`` on ``leaves`` alone; other tensors of the loss get no gradient."""
    leaves = list(leaves)
    for leaf, slope in zip(leaves, torch.autograd.grad(loss, leaves, allow_unused=True), strict=True):
        leaf.grad = slope
    optimizer.step()


def example_of(client: ClientView) -> Tensor:
    """One model-ready input of the client, [1, ...]; an error if inputs are not numbers that can be generated."""
    sample: Tensor = client.inputs(torch.zeros(1, dtype=torch.int64))
    if not sample.is_floating_point():
        raise ValueError(f"{sample.dtype} inputs (token ids) cannot be generated: use a method that needs no synthetic data")
    return sample
