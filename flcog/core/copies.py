"""Copies to a GPU that overlap with computations: they start early, and only the computations that read a copy wait for it."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

MOST_UNDER_WAY = 64 * 2**20
"""The total size in bytes of the copies that may be started ahead of time."""


class CopyQueue:
    """A second CUDA stream that copies from pinned memory, because copies from other memory block the CPU.

    Each of the two queues, of copies and of computations, runs in its own order, independent of the other.
    """

    def __init__(self, device: torch.device) -> None:
        self._device, self._stream = device, torch.cuda.Stream(device)

    def copy(self, tensor: Tensor) -> Tensor:
        """Start to copy a tensor to the device, or return it if it is there. The copy's memory belongs to this queue."""
        if tensor.is_cuda:
            return tensor
        with torch.cuda.stream(self._stream):
            return sent(tensor, self._device)

    def mark(self) -> Any:
        """Mark the point in this queue after all copies that were started so far."""
        return self._stream.record_event()

    def wait(self, mark: Any) -> None:
        """Start later computations only after that point."""
        torch.cuda.current_stream(self._device).wait_event(mark)

    def keep(self, copy: Tensor) -> None:
        """Keep this copy's memory until the queued computations have finished, even if the tensor is deleted earlier."""
        copy.record_stream(torch.cuda.current_stream(self._device))


def copy_queue_of(device: torch.device) -> CopyQueue | None:
    """A device's second queue, or None."""
    return CopyQueue(device) if device.type == "cuda" else None


def sent(tensor: Tensor, device: torch.device) -> Tensor:
    """Move a tensor to the device without waiting for a GPU. torch keeps the pinned memory until the copy is finished.

    torch cannot pin tensors whose elements share memory, as after ``expand``. On Apple's ``mps`` this waits, because the device
    would read memory that was freed meanwhile (https://github.com/pytorch/pytorch/issues/189690).
    """
    if pins(device) and tensor.device.type == "cpu":
        return tensor.contiguous().pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


def pins(device: torch.device) -> bool:
    """Return whether the device reads pinned memory while the CPU continues."""
    return device.type == "cuda"


class Arriving:
    """A tree of tensors that a queue copies to the device."""

    def __init__(self, tree: Any, queue: CopyQueue) -> None:
        self._queue, self._copies = queue, list[Tensor]()
        self._tree = pytree.tree_map_only(Tensor, self._begin, tree)
        self._mark = queue.mark() if self._copies else None
        self.num_bytes = sum(copy.nbytes for copy in self._copies)

    def _begin(self, tensor: Tensor) -> Tensor:
        copy = self._queue.copy(tensor)
        if copy is not tensor:
            self._copies.append(copy)
        return copy

    def here(self) -> Any:
        """Return the tree on the device, for computations that are queued from now on."""
        if self._copies:
            self._queue.wait(self._mark)
        for copy in self._copies:
            self._queue.keep(copy)
        return self._tree


class Ahead:
    """Trees in the order of their expected use. While one is in use, the next are being copied.

    They can be used repeatedly and in any order.
    """

    def __init__(self, trees: Sequence[Any], queue: CopyQueue) -> None:
        self._trees, self._queue = trees, queue
        self._coming: dict[int, Arriving] = {}
        self._next, self._under_way = 0, 0
        self._begin_some()

    def take(self, position: int) -> Any:
        """Return a tree on the device."""
        arriving = self._coming.pop(position, None)
        if arriving is None:
            arriving = Arriving(self._trees[position], self._queue)
        else:
            self._under_way -= arriving.num_bytes
        self._next = max(self._next, position + 1)
        self._begin_some()
        return arriving.here()

    def _begin_some(self) -> None:
        while self._next < len(self._trees) and self._under_way < MOST_UNDER_WAY:
            arriving = self._coming[self._next] = Arriving(self._trees[self._next], self._queue)
            self._under_way += arriving.num_bytes
            self._next += 1


def handed_over(trees: Sequence[Any], queue: CopyQueue | None) -> list[Callable[[], Any]]:
    """Return a function for each tree that returns it on the device. Without a second queue the trees are there already."""
    if queue is None:
        return [lambda tree=tree: tree for tree in trees]  # type: ignore[misc]
    ahead = Ahead(trees, queue)
    return [functools.partial(ahead.take, position) for position in range(len(trees))]
