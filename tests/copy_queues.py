"""Stand-ins on the CPU for a GPU's second queue, which copies tensors while the first queue computes."""

import weakref
from collections import deque
from collections.abc import Callable

import torch
from torch import Tensor


def rubbish(tensor: Tensor) -> Tensor:
    """A tensor of wrong values, so that a test notices a computation that uses a copy too early."""
    if tensor.dtype == torch.bool:
        return ~tensor
    return torch.full_like(tensor, torch.nan if tensor.is_floating_point() else torch.iinfo(tensor.dtype).max)


class Delayed:
    """A copy has wrong values until computations wait for it.

    Args:
        waits: whether waiting completes the copies.
    """

    def __init__(self, waits: bool = True) -> None:
        self._waits, self._queue = waits, deque[tuple[Tensor, Tensor]]()
        self.is_there = True
        self.begun = self.done = self.kept = 0
        self.ahead: list[int] = []
        """At each wait, the number of copies that had begun and had not been waited for."""

    def copy(self, tensor: Tensor) -> Tensor:
        copied = rubbish(tensor)
        self._queue.append((copied, tensor.clone()))
        self.begun += 1
        return copied

    def mark(self) -> int:
        return self.begun

    def wait(self, mark: int) -> None:
        self.ahead.append(self.begun - mark)
        while self._waits and self.done < mark:
            copied, tensor = self._queue.popleft()
            copied.copy_(tensor)
            self.done += 1

    def keep(self, copy: Tensor) -> None:
        self.kept += 1


class TwoQueues:
    """A queue of copies and a queue of computations. ``work_off`` makes copies as early or as late as possible.

    As on a GPU, a copy may reuse the memory of an earlier copy that was deleted, even if queued computations still have to read it.

    Args:
        copies_first: whether all copies are made before the computations. Otherwise each copy is made when a computation waits for it.
        waits, keeps: whether waiting for a copy, and keeping its memory, have an effect.
    """

    def __init__(self, copies_first: bool, waits: bool = True, keeps: bool = True) -> None:
        self._copies_first, self._waits, self._keeps = copies_first, waits, keeps
        self._copies, self._computations = deque[Callable[[], object]](), deque[Callable[[], object]]()
        self._begun = self._done = self.reused = 0
        self._memory: list[tuple[Tensor, weakref.ref[Tensor]]] = []
        self._kept: set[int] = set()

    def copy(self, tensor: Tensor) -> Tensor:
        memory = self._free()
        memory = rubbish(tensor) if memory is None else memory
        given = memory.view_as(memory)
        self._memory.append((memory, weakref.ref(given)))
        self._copies.append(lambda: memory.copy_(tensor))
        self._begun += 1
        return given

    def _free(self) -> Tensor | None:
        for place, (memory, given) in enumerate(self._memory):
            if given() is None and memory.data_ptr() not in self._kept:
                self.reused += 1
                return self._memory.pop(place)[0]
        return None

    def mark(self) -> int:
        return self._begun

    def wait(self, mark: int) -> None:
        if self._waits:
            self.compute(lambda: self._copy_up_to(mark))

    def keep(self, copy: Tensor) -> None:
        if self._keeps:
            self._kept.add(copy.data_ptr())

    def compute(self, computation: Callable[[], object]) -> None:
        """Queue a computation."""
        self._computations.append(computation)

    def work_off(self) -> None:
        """Execute the two queues."""
        if self._copies_first:
            self._copy_up_to(self._begun)
        while self._computations:
            self._computations.popleft()()

    def _copy_up_to(self, mark: int) -> None:
        while self._done < mark:
            self._copies.popleft()()
            self._done += 1
