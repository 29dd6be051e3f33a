"""Keeps a module's trained weights when an evaluation calls its ``setup`` again, which may build its layers anew."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor, nn

from flcog.client.lightning_hooks import written_hooks
from flcog.core.lightning_packages import lightning_base
from flcog.model_function import is_writable

_fitted: WeakSet[nn.Module] = WeakSet()
"""Modules that a training has set up."""


@contextmanager
def keeping_weights(module: Any, stage: str) -> Iterator[None]:
    """Surround the ``setup`` of a module. After a training has set it up, its parameters and buffers are the same objects as before.

    Args:
        module: the user's module, or a bare network.
        stage: ``fit``, ``validate``, ``test`` or ``predict``.
    """
    if stage == "fit":
        _fitted.add(module)
    builds = lightning_base(module, "LightningModule") and not {"setup", "configure_model"}.isdisjoint(written_hooks(module))
    if stage == "fit" or module not in _fitted or not builds:
        yield
        return
    kept = {name: (tensor, _copied(tensor)) for name, tensor in _tensors(module)}
    yield
    for name, now in list(_tensors(module)):
        tensor, value = kept.get(name, (now, now))
        if now.shape == tensor.shape:
            owner, _, attribute = name.rpartition(".")
            setattr(module.get_submodule(owner), attribute, tensor)
            if value is not tensor and is_writable(tensor):
                with torch.no_grad():
                    tensor.copy_(value)


def _copied(tensor: Tensor) -> Tensor:
    """A copy, except of frozen weights, which no training has changed."""
    return tensor if isinstance(tensor, nn.Parameter) and not tensor.requires_grad else tensor.detach().clone()


def _tensors(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    return chain(module.named_parameters(remove_duplicate=False), module.named_buffers(remove_duplicate=False))
