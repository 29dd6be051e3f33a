"""The running statistics of BatchNorm: they are recomputed, and variances stay at or above 0."""

from collections.abc import Iterable

import torch
from torch import nn

from flcog.core.trees import Tree, num_rows
from flcog.core.types import Params
from flcog.functional.model_function import ModelFunction, forward


def recomputed_statistics(model: ModelFunction, params: Params, buffers: Params, batches: Iterable[Tree]) -> Params:
    """The buffers with the means of BatchNorm's statistics over batches, computed with these parameters."""
    norms = [layer for layer in model.module.modules() if isinstance(layer, nn.modules.batchnorm._BatchNorm)]
    momenta = [norm.momentum for norm in norms]
    fresh = {name: torch.zeros_like(b) if name.endswith("num_batches_tracked") else b.clone() for name, b in buffers.items()}
    model.renew_buffers()
    try:
        for norm in norms:
            norm.momentum = None  # the mean over batches
        for inputs in batches:
            if num_rows(inputs) > 1:
                model.training(params, fresh, forward, inputs)
    finally:
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum
    return fresh


def without_negative_variances(buffers: Params) -> Params:
    """The buffers, with BatchNorm's variances raised to 0 where noise or a lossy codec has made them negative: they would give NaN.

    >>> without_negative_variances({"norm.running_mean": torch.tensor(-1.0), "norm.running_var": torch.tensor(-1.0)})
    {'norm.running_mean': tensor(-1.), 'norm.running_var': tensor(0.)}
    """
    return {name: value.clamp(min=0) if name.endswith("running_var") else value for name, value in buffers.items()}
