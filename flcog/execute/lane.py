"""The tensors on which a program of local steps runs: always the same ones, so that it is compiled once, and can be captured."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from flcog.execute.local_step import Given, Held, LocalStep, Shared
from flcog.execute.plain_steps import Chunk


class Layout(NamedTuple):
    """How a tensor lies in memory."""

    shape: torch.Size
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device

    def empty(self) -> Tensor:
        return torch.empty_strided(self.shape, self.stride, dtype=self.dtype, device=self.device)


def layout_of(tensor: Tensor) -> Layout:
    """That of a copy without gaps, whose axes have the tensor's order: images keep their channels last."""
    strides, step = [0] * tensor.ndim, 1
    for axis in sorted(range(tensor.ndim), key=lambda axis: (tensor.stride(axis), -axis)):
        strides[axis], step = step, step * tensor.shape[axis]
    return Layout(tensor.shape, tuple(strides), tensor.dtype, tensor.device)


class Lane:
    """Clients' tensors, the round's and a step's, in places of their own: one chunk of clients after another passes through.

    Args:
        program: what runs on them.
        tree: their structure.
        layouts: how they lie there.
    """

    def __init__(self, program: Any, tree: Any, layouts: Sequence[Layout]) -> None:
        self.program, self.tensors = program, [layout.empty() for layout in layouts]
        self.held, self._shared, self._given = pytree.tree_unflatten(self.tensors, tree)

    def load(self, held: Held, shared: Shared) -> None:
        """Let clients in."""
        _copy((self.held, self._shared), (held, shared))

    def take(self, given: Given) -> bool:
        """Take a step's batch, if it has the shape for which the program was made."""
        fits = [leaf.shape for leaf in pytree.tree_leaves(given)] == [leaf.shape for leaf in pytree.tree_leaves(self._given)]
        if fits:
            _copy(self._given, given)
        return fits

    def step(self, given: Given, uncompiled: LocalStep) -> None:
        """One step of the clients inside. A batch of another shape (an epoch's last, where padding would be felt) is not compiled."""
        if self.take(given):
            self.go()
        else:
            uncompiled(self.held, self._shared, given)

    def go(self) -> None:
        """Run the program on what is there."""
        self.program(*self.tensors)

    def give_up(self) -> None:
        """Told that nobody asks for what is under way; the memory of all that it takes may be given to others."""

    def unload(self, clients: int) -> Chunk:
        """The first clients, whose place the next may take."""
        return first_of(self.held, clients)


def first_of(held: Held, clients: int) -> Chunk:
    """Copies of the first clients."""
    chunk: Chunk = pytree.tree_map(lambda leaf: leaf[:clients].clone(), Chunk(*held[:4]))
    return chunk


def _copy(into: Any, values: Any) -> None:
    torch._foreach_copy_(pytree.tree_leaves(into), pytree.tree_leaves(values))
