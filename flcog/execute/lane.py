"""The tensors of a program of local steps. They stay at the same addresses, so that the program can be captured."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from flcog.execute.local_step import ChunkTensors, LocalStep, RoundTensors, StepTensors
from flcog.execute.plain_steps import Chunk

StepArguments = tuple[ChunkTensors, RoundTensors, StepTensors]


class Layout(NamedTuple):
    """The layout of a tensor in memory."""

    shape: torch.Size
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device

    def empty(self) -> Tensor:
        return torch.empty_strided(self.shape, self.stride, dtype=self.dtype, device=self.device)


def layout_of(tensor: Tensor) -> Layout:
    """The layout of a copy without gaps whose axes have the order of the tensor's, so that images stay channels-last."""
    strides, step = [0] * tensor.ndim, 1
    for axis in sorted(range(tensor.ndim), key=lambda axis: (tensor.stride(axis), -axis)):
        strides[axis], step = step, step * tensor.shape[axis]
    return Layout(tensor.shape, tuple(strides), tensor.dtype, tensor.device)


class NewStructure(Exception):
    """A method's state has another structure after the first local step than before it."""


class StepProgram(NamedTuple):
    """A local step as a function of a flat list of tensors.

    Args:
        function: changes the tensors in place.
        tree: the structure of the step's arguments, whose leaves are the tensors.
        layouts: of the tensors.
    """

    function: Callable[..., None]
    tree: Any
    layouts: list[Layout]

    @classmethod
    def of(cls, local_step: LocalStep, arguments: StepArguments) -> "StepProgram":
        """The plain local step, for arguments like these."""
        leaves, tree = pytree.tree_flatten(arguments)

        def function(*leaves: Tensor) -> None:
            chunk, shared, given = pytree.tree_unflatten(leaves, tree)
            if local_step(chunk, shared, given) is not chunk:
                raise NewStructure

        return cls(function, tree, [layout_of(leaf) for leaf in leaves])


class Lane:
    """The tensors of a program. One chunk of clients after another is copied to them, trains there, and is copied out."""

    def __init__(self, program: StepProgram) -> None:
        self.function, self.tensors = program.function, [layout.empty() for layout in program.layouts]
        self.chunk, self._shared, self._given = pytree.tree_unflatten(self.tensors, program.tree)

    def load(self, chunk: ChunkTensors, shared: RoundTensors) -> None:
        """Copy clients and the round's values to the lane."""
        _copy((self.chunk, self._shared), (chunk, shared))

    def take(self, given: StepTensors) -> bool:
        """Copy a step's batches to the lane and return True, if they have the shapes that the program expects."""
        fits = [leaf.shape for leaf in pytree.tree_leaves(given)] == [leaf.shape for leaf in pytree.tree_leaves(self._given)]
        if fits:
            _copy(self._given, given)
        return fits

    def step(self, given: StepTensors, uncompiled: LocalStep) -> None:
        """One step of the lane's clients. A batch of another shape runs uncompiled: the last of an epoch, in models that feel padding."""
        if self.take(given):
            self.go()
        else:
            uncompiled(self.chunk, self._shared, given)

    def go(self) -> None:
        """Run the program."""
        self.function(*self.tensors)

    def give_up(self) -> None:
        """Wait for pending work, so that the memory of the lane can be reused."""

    def unload(self, clients: int) -> Chunk:
        """Copies of the first clients, whose place the next clients may take."""
        return first_of(self.chunk, clients)


def first_of(chunk: ChunkTensors, clients: int) -> Chunk:
    """Copies of the first clients."""
    copies: Chunk = pytree.tree_map(lambda leaf: leaf[:clients].clone(), Chunk(*chunk[:4]))
    return copies


def _copy(into: Any, values: Any) -> None:
    torch._foreach_copy_(pytree.tree_leaves(into), pytree.tree_leaves(values))
