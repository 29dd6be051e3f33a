"""Refuse ids for which an embedding has no row. torch names no layer and no set, and on a GPU such an id ends the process."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from flcog.core.trees import Tree, leaves
from flcog.data import Federation, Samples

BLOCK = 2**16
"""The number of samples that are read at a time, which bounds the memory."""


class UnknownIdsError(ValueError):
    """An embedding lacks rows for some ids."""


@contextmanager
def data_ids_checked(module: nn.Module, sample: Tree, federation: Federation) -> Iterator[None]:
    """Refuse sets in memory with ids that an embedding lacks, if it reads a part of ``sample`` in a forward pass within.

    Args:
        module: whose forward pass it is.
        sample: an input of the module.
        federation: the data sets.
    """
    places = {(part.data_ptr(), part.shape): place for place, part in enumerate(leaves(sample)) if isinstance(part, Tensor)}

    def look(name: str, layer: nn.Embedding, ids: Tensor) -> None:
        if (place := places.get((ids.data_ptr(), ids.shape))) is None:
            return  # positions, or ids that the module has computed
        for part, samples in federation.sets.items():
            if samples.stored:
                low, high = _range_of(samples, federation, place)
                _require_rows(name, layer, low, high, f"the {part} set", f"give the model at least {high + 1} ids (vocab_size)")

    with _embeddings_watched(module, look):
        yield


@contextmanager
def ids_checked(module: nn.Module, where: str) -> Iterator[None]:
    """Refuse ids that an embedding lacks in any forward pass within."""

    def look(name: str, layer: nn.Embedding, ids: Tensor) -> None:
        low, high = map(int, ids.aminmax())
        _require_rows(name, layer, low, high, where, "give ids of the model's vocabulary")

    with _embeddings_watched(module, look):
        yield


@contextmanager
def _embeddings_watched(module: nn.Module, look: Callable[[str, nn.Embedding, Tensor], None]) -> Iterator[None]:
    """Show the name, the layer and the ids of each embedding's forward pass."""

    def show(name: str, layer: Any, inputs: tuple[Any, ...]) -> None:
        # A network that the user has compiled would keep this hook in its program.
        if not torch.compiler.is_compiling() and inputs and inputs[0].numel():
            look(name, layer, inputs[0])

    # Derived classes may read other rows than those of the ids, such as rows of positions.
    own = [(name, layer) for name, layer in module.named_modules() if type(layer).forward is nn.Embedding.forward]
    handles = [layer.register_forward_pre_hook(partial(show, name)) for name, layer in own]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _range_of(samples: Samples, federation: Federation, place: int) -> tuple[int, int]:
    """The smallest and the largest value in a part of a set's inputs, as a model gets them."""
    found = []
    for first in range(0, len(samples), BLOCK):
        block = samples.gather(torch.arange(first, min(first + BLOCK, len(samples))))
        found.append(leaves(federation.preprocess(block))[place].aminmax())
    return min(int(low) for low, _ in found), max(int(high) for _, high in found)


def _require_rows(name: str, layer: nn.Embedding, low: int, high: int, where: str, remedy: str) -> None:
    if low < 0 or high >= layer.num_embeddings:
        remedy = "number the ids from 0" if low < 0 else remedy
        raise UnknownIdsError(
            f"the layer {name!r} embeds the ids 0 to {layer.num_embeddings - 1}, and {where} has ids from {low} to {high}: {remedy}"
        )
