"""Local steps captured once as CUDA graphs, and replayed: a step then costs one launch, whatever its number of kernels."""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from flcog.execute.compiled_steps import Made, Programs, on_tensors
from flcog.execute.lane import Lane, layout_of
from flcog.execute.local_step import Given, Held, LocalStep, Shared
from flcog.execute.plain_steps import Chunk
from flcog.method import Notes

WARM_UPS = 3
"""Steps before one is captured: libraries choose kernels and ask for memory in the first ones, which a graph may not contain."""


class Capturing(Protocol):
    """What is asked of a device that captures work and replays it."""

    def stream(self) -> Any:
        """A new queue of work."""

    def current(self) -> Any:
        """The queue of those who ask for none."""

    def on(self, stream: Any) -> AbstractContextManager[Any]:
        """Inside, work goes there."""

    def wait(self, waiting: Any, other: Any) -> None:
        """Let what comes on one queue wait for all that is on another; Python goes on."""

    def lend(self, tensor: Tensor, stream: Any) -> None:
        """Let no other tensor have this one's memory before all is done that the queue was given until this one is let go of."""

    def capture(self, function: Callable[[], None], stream: Any) -> Callable[[], None]:
        """What runs a function's work again, on the same memory."""


class Cuda:
    """CUDA graphs, by the rules of https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-graphs."""

    def stream(self) -> Any:
        return torch.cuda.Stream()

    def current(self) -> Any:
        return torch.cuda.current_stream()

    def on(self, stream: Any) -> AbstractContextManager[Any]:
        context: AbstractContextManager[Any] = torch.cuda.stream(stream)
        return context

    def wait(self, waiting: Any, other: Any) -> None:
        waiting.wait_stream(other)

    def lend(self, tensor: Tensor, stream: Any) -> None:
        tensor.record_stream(stream)

    def capture(self, function: Callable[[], None], stream: Any) -> Callable[[], None]:
        self.wait(stream, self.current())
        try:
            with self.on(stream):
                for _ in range(WARM_UPS):
                    function()
        finally:  # where memory runs out, tensors are let go of that steps under way still use
            self.wait(self.current(), stream)
        graph = torch.cuda.CUDAGraph()
        # Other threads may read data meanwhile, with copies of their own to the device. The outer context leaves the stream where a
        # capture fails, which torch 2.11 does not.
        with self.on(stream), torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
            function()
        replay: Callable[[], None] = graph.replay
        return replay


class GraphLane(Lane):
    """A lane with a stream of its own, on which its graph is replayed.

    All that comes in was made on the current stream, where its memory would be handed to the next tensor as soon as Python forgets
    it: so it is lent to this one, for as long as it is read there, and no batch is held longer. What goes out gets its memory on the
    current stream as well.
    """

    def __init__(self, device: Capturing, made: Made, held: Held, shared: Shared, given: Given) -> None:
        super().__init__(*made)
        self._device, self._stream = device, device.stream()
        super().load(held, shared)
        super().take(given)
        self._replay = device.capture(super().go, self._stream)

    def load(self, held: Held, shared: Shared) -> None:
        with self._after_what_came_in(held, shared):
            super().load(held, shared)

    def step(self, given: Given, uncompiled: LocalStep) -> None:
        with self._after_what_came_in(given):
            super().step(given, uncompiled)

    def go(self) -> None:
        self._replay()

    def unload(self, clients: int) -> Chunk:
        held = Chunk(*self.held[:4])
        out: Chunk = pytree.tree_map(lambda leaf: torch.empty_like(leaf[:clients]), held)
        with self._after_what_came_in():
            pytree.tree_map(lambda into, leaf: into.copy_(leaf[:clients]), out, held)
        self.give_up()
        return out

    def give_up(self) -> None:
        self._device.wait(self._device.current(), self._stream)

    def _after_what_came_in(self, *trees: Any) -> AbstractContextManager[Any]:
        """Inside, work goes to the lane's stream, behind what is on the current one."""
        for tensor in pytree.tree_leaves(trees):
            self._device.lend(tensor, self._stream)
        self._device.wait(self._stream, self._device.current())
        return self._device.on(self._stream)


class Graphs(Programs):
    """Graphs of local steps, one for each lane.

    Args:
        notes: where a note says what capturing took.
        compiles: whether the compiled step is captured, or the plain one.
        device: that captures.
    """

    verb, kind = "captured", "graphs"

    def __init__(self, notes: Notes, compiles: bool = True, device: Capturing | None = None) -> None:
        super().__init__(notes)
        self._compiles, self._device = compiles, device or Cuda()

    def _make(self, step: LocalStep, held: Held, shared: Shared, given: Given) -> Made:
        if self._compiles:
            return super()._make(step, held, shared, given)
        leaves, tree = pytree.tree_flatten((held, shared, given))
        return Made(on_tensors(step, tree), tree, [layout_of(leaf) for leaf in leaves])

    def _lane(self, made: Made, held: Held, shared: Shared, given: Given) -> Lane:
        began = time.perf_counter()
        lane = GraphLane(self._device, made, held, shared, given)
        self._say(held, began)
        return lane
