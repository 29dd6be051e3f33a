"""Copies to a GPU that run beside its computations: begun early, and waited for by the computations that need them, by nobody else."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

MOST_UNDER_WAY = 64 * 2**20
"""Bytes beyond which no further copy is begun ahead."""


class Lane(Protocol):
    """A queue of copies beside a device's queue of computations. Each is worked off in its order, and neither knows of the other."""

    def copy(self, tensor: Tensor) -> Tensor:
        """Begin to copy; what is on the device already is returned itself. The copy's memory belongs to this queue."""

    def mark(self) -> Any:
        """The point in this queue at which all copies begun so far are done."""

    def wait(self, mark: Any) -> None:
        """Computations that are queued from now on begin after that point."""

    def keep(self, copy: Tensor) -> None:
        """Let no later copy have this one's memory before the computations queued so far, when it is let go of, are done."""


class CudaLane:
    """A second stream of a GPU, fed from pinned memory: copies from other memory would hold up the CPU.

    Args:
        device: the GPU.
    """

    def __init__(self, device: torch.device) -> None:
        self._device, self._stream = device, torch.cuda.Stream(device)

    def copy(self, tensor: Tensor) -> Tensor:
        if tensor.is_cuda:
            return tensor
        with torch.cuda.stream(self._stream):
            return sent(tensor, self._device)

    def mark(self) -> Any:
        return self._stream.record_event()

    def wait(self, mark: Any) -> None:
        torch.cuda.current_stream(self._device).wait_event(mark)

    def keep(self, copy: Tensor) -> None:
        copy.record_stream(torch.cuda.current_stream(self._device))


def lane_of(device: torch.device) -> Lane | None:
    """A device's second queue, if it has one."""
    return CudaLane(device) if device.type == "cuda" else None


def sent(tensor: Tensor, device: torch.device) -> Tensor:
    """A tensor on the device. A GPU is not waited for: torch holds on to the pinned memory until the copy is done.

    Torch pins memory as it lies, and so nothing whose elements share their place, as those of ``expand`` do. Apple's ``mps`` is waited
    for: it would read memory that has been let go of meanwhile (https://github.com/pytorch/pytorch/issues/189690).
    """
    if pins(device) and tensor.device.type == "cpu":
        return tensor.contiguous().pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


def pins(device: torch.device) -> bool:
    """Whether the device reads pinned memory by itself, while the CPU goes on."""
    return device.type == "cuda"


class Arriving:
    """A tree of tensors on its way to the device.

    Args:
        tree: what is copied, as far as it is not there.
        lane: by which queue.
    """

    def __init__(self, tree: Any, lane: Lane) -> None:
        self._lane, self._copies = lane, list[Tensor]()
        self._tree = pytree.tree_map_only(Tensor, self._begin, tree)
        self._mark = lane.mark() if self._copies else None
        self.num_bytes = sum(copy.nbytes for copy in self._copies)

    def _begin(self, tensor: Tensor) -> Tensor:
        copy = self._lane.copy(tensor)
        if copy is not tensor:
            self._copies.append(copy)
        return copy

    def here(self) -> Any:
        """The tree, for what is computed from now on."""
        if self._copies:
            self._lane.wait(self._mark)
        for copy in self._copies:
            self._lane.keep(copy)
        return self._tree


class Ahead:
    """Trees in the order in which they are likely to be asked for. While one is in use, the next are on their way.

    Args:
        trees: what is asked for, any number of times and in any order.
        lane: by which queue they are copied.
    """

    def __init__(self, trees: Sequence[Any], lane: Lane) -> None:
        self._trees, self._lane = trees, lane
        self._coming: dict[int, Arriving] = {}
        self._next, self._under_way = 0, 0
        self._begin_some()

    def take(self, position: int) -> Any:
        """One of the trees, on the device."""
        arriving = self._coming.pop(position, None)
        if arriving is None:
            arriving = Arriving(self._trees[position], self._lane)
        else:
            self._under_way -= arriving.num_bytes
        self._next = max(self._next, position + 1)
        self._begin_some()
        return arriving.here()

    def _begin_some(self) -> None:
        while self._next < len(self._trees) and self._under_way < MOST_UNDER_WAY:
            arriving = self._coming[self._next] = Arriving(self._trees[self._next], self._lane)
            self._under_way += arriving.num_bytes
            self._next += 1


def handed_over(trees: Sequence[Any], lane: Lane | None) -> list[Callable[[], Any]]:
    """For each tree what gives it, on the device; without a second queue the trees are there already."""
    if lane is None:
        return [functools.partial(_itself, tree) for tree in trees]
    ahead = Ahead(trees, lane)
    return [functools.partial(ahead.take, position) for position in range(len(trees))]


def _itself(tree: Any) -> Any:
    return tree
