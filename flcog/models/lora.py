"""LoRA: a frozen network that learns by adding a product of two thin matrices to the weights of some of its layers."""

import math
import re
from collections.abc import Iterator, Sequence
from typing import Any, cast

import torch
import torch.nn.functional as F
from jsonargparse import class_from_function
from torch import Tensor, nn

from flcog.core.checks import positive, whole
from flcog.models.base import FeatureModel


class Adapter(nn.Module):
    """A frozen layer and, beside it, its trained change: ``layer(x) + alpha / rank * B A x``.

    A is drawn as torch draws a layer's weights and B is zero, so that a new adapter changes nothing. The sum of the weights is never
    formed, so that clients side by side share the frozen one and multiply by it together; only who reads ``weight`` itself, as
    torch's attention does, gets the sum. The layer is an ``nn.Linear``, an ungrouped ``nn.Conv2d``, or the ``Conv1D`` of transformers,
    which is linear too.
    """

    def __init__(self, layer: nn.Module, rank: int, alpha: float) -> None:
        super().__init__()
        self.layer, self.rank, self.alpha = layer.requires_grad_(False), rank, alpha
        weight, (outputs, *inputs) = _weight_of(layer), _shape_of(layer)
        dtype = torch.promote_types(weight.dtype, torch.float32)  # also beside weights in few bits
        self.A = nn.Parameter(weight.new_empty(rank, *inputs, dtype=dtype))
        self.B = nn.Parameter(weight.new_zeros(outputs, rank, dtype=dtype))
        nn.init.kaiming_uniform_(self.A, a=math.sqrt(5))

    @property
    def scale(self) -> float:
        return self.alpha / self.rank

    @property
    def weight(self) -> Tensor:
        """The layer's weight with the change added."""
        change = self.scale * self.B @ self.A.flatten(1)
        weight = _weight_of(self.layer)
        return weight + (change.T if _is_transposed(self.layer) else change.view_as(weight))

    @property
    def bias(self) -> Tensor | None:
        return cast("Tensor | None", self.layer.bias)

    def forward(self, x: Tensor) -> Tensor:
        if isinstance(self.layer, nn.Conv2d):
            inner = self.layer._conv_forward(x, self.A, None)
            return self.layer(x) + self.scale * F.conv2d(inner, self.B[:, :, None, None])
        return self.layer(x) + self.scale * F.linear(F.linear(x, self.A), self.B)

    def extra_repr(self) -> str:
        return f"rank={self.rank}, alpha={self.alpha:g}"


class Still(nn.Module):
    """A frozen layer that stays in evaluation mode while the model trains: BatchNorm whose statistics are not to move."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer
        self.train(False)

    def train(self, mode: bool = True) -> "Still":
        return super().train(False)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.layer(*args, **kwargs)


def adapters(model: nn.Module) -> Iterator[tuple[str, Adapter]]:
    """A model's adapters, by their names."""
    return ((name, layer) for name, layer in model.named_modules() if isinstance(layer, Adapter))


def _lora(
    model: nn.Module,
    rank: int = 8,
    alpha: float = 16.0,
    targets: Sequence[str] | None = None,
    trained: Sequence[str] | None = None,
) -> nn.Module:
    """Freezes a network and puts adapters of low rank beside some of its layers: ``W x`` becomes ``W x + alpha / rank * B A x``.

    Only the adapters and the head train and travel. The frozen weights are in memory once for all clients and threads, and
    BatchNorm keeps its statistics. The network is changed in place and stays of its class, with the features and the head that it
    has.

    Hu et al., LoRA: Low-Rank Adaptation of Large Language Models, ICLR 2022, https://arxiv.org/abs/2106.09685.

    Args:
        model: the network, as a rule with pretrained weights.
        rank: the rank of the change of each weight, at least 1.
        alpha: its strength; a common choice is once or twice the rank.
        targets: regular expressions that select the layers to adapt by name, such as ``["query", "value"]``. None selects every
            linear layer except the head or, if there is none, every ungrouped convolution.
        trained: regular expressions that select parameters to train without adapters. None selects the head of a
            :class:`flcog.models.FeatureModel`.

    Example:
        >>> import torch, flcog
        >>> network = flcog.models.LoRA(flcog.models.MLP(4, (8, 8), 3), rank=2)
        >>> [name for name, value in network.named_parameters() if value.requires_grad]
        ['hidden.0.A', 'hidden.0.B', 'hidden.2.A', 'hidden.2.B', 'head.weight', 'head.bias']
    """
    whole(None, 1, rank=rank)
    positive(None, alpha=alpha)
    if trained is None:
        trained = [r"^head\."] if isinstance(model, FeatureModel) else []
    chosen = _chosen(model, targets, trained)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(_is_named(name, trained))
    for name in chosen:
        _replace(model, name, Adapter(model.get_submodule(name), rank, alpha))
    _keep_statistics(model)
    return model


def _keep_statistics(model: nn.Module) -> None:
    """Keep frozen BatchNorm layers in evaluation mode."""
    norms = [name for name, layer in model.named_modules() if isinstance(layer, nn.modules.batchnorm._BatchNorm)]
    for name in norms:
        if not any(parameter.requires_grad for parameter in model.get_submodule(name).parameters()):
            _replace(model, name, Still(model.get_submodule(name)))


def _chosen(model: nn.Module, targets: Sequence[str] | None, trained: Sequence[str]) -> list[str]:
    """The names of the layers to adapt."""
    layers = {name: layer for name, layer in model.named_modules() if name and not _is_named(f"{name}.", trained)}
    able = {name: layer for name, layer in layers.items() if _is_linear(layer) or _is_plain_convolution(layer)}
    if targets is None:
        linear = [name for name, layer in able.items() if _is_linear(layer)]
        chosen = linear or list(able)
    else:
        chosen = [name for name in able if _is_named(name, targets)]
    if not chosen:
        wanted = "linear layer or ungrouped convolution" if targets is None else f"layer that targets={list(targets)} name"
        raise ValueError(
            f"LoRA finds no {wanted} in {type(model).__name__} that it can adapt; it has {', '.join(able) or 'none of either'}"
        )
    return chosen


def _is_named(name: str, patterns: Sequence[str]) -> bool:
    return any(re.search(pattern, name) for pattern in patterns)


def _is_linear(layer: nn.Module) -> bool:
    return isinstance(layer, nn.Linear) or _is_transposed(layer)


def _is_transposed(layer: nn.Module) -> bool:
    """Whether it is the linear layer of transformers' GPT models, whose weight is [inputs, outputs]."""
    return type(layer).__name__ == "Conv1D" and hasattr(layer, "nf")


def _is_plain_convolution(layer: nn.Module) -> bool:
    return isinstance(layer, nn.Conv2d) and layer.groups == 1


def _shape_of(layer: nn.Module) -> tuple[int, ...]:
    """Outputs and inputs of a layer's weight. bitsandbytes' linear layers of 4 bits store it in another shape."""
    if isinstance(layer, nn.Linear):
        return layer.out_features, layer.in_features
    weight = _weight_of(layer)
    return tuple(weight.T.shape if _is_transposed(layer) else weight.shape)


def _weight_of(layer: nn.Module) -> Tensor:
    return cast(Tensor, layer.weight)


def _replace(model: nn.Module, name: str, layer: nn.Module) -> None:
    parent, _, attribute = name.rpartition(".")
    setattr(model.get_submodule(parent), attribute, layer)


LoRA = class_from_function(_lora, name="LoRA")
