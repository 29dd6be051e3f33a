"""Local steps captured as CUDA graphs. A replayed step costs one launch instead of a launch for each kernel."""

import gc
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import cuda
from torch.utils import _pytree as pytree

from flcog.execute.programs import (
    ChunkTensors,
    Lane,
    LocalStep,
    Programs,
    RoundTensors,
    StepArguments,
    StepProgram,
    StepTensors,
    program_of,
)
from flcog.execute.stacked_clients import Chunk

WARM_UPS = 3
"""The number of steps before the capture. The first steps choose kernels and allocate memory, which a graph must not contain."""


def capture(function: Callable[[], None], stream: Any) -> Callable[[], None]:
    """Capture the work of a function, and return a function that replays it on the same memory.

    https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-graphs has the rules.
    """
    stream.wait_stream(cuda.current_stream())
    try:
        with cuda.stream(stream):
            for _ in range(WARM_UPS):
                function()
    finally:  # If memory runs out, tensors are freed that queued steps still use.
        cuda.current_stream().wait_stream(stream)
    graph, collects = cuda.CUDAGraph(), gc.isenabled()
    gc.disable()  # the graph of an earlier run may be part of the garbage, and freeing a graph ends the capture with an error
    try:
        # Other threads may copy data to the device meanwhile. The outer context restores the stream after a failed capture, which
        # torch 2.11 does not.
        with cuda.stream(stream), cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
            function()
    finally:
        if collects:
            gc.enable()
    replay: Callable[[], None] = graph.replay
    return replay


class GraphLane(Lane):
    """A lane that replays its graph on a stream of its own.

    Arguments are made on the current stream, whose allocator may reuse their memory as soon as Python drops them. So they are lent to
    the lane's stream until it has read them. Results get their memory on the current stream.
    """

    def __init__(self, program: StepProgram, arguments: StepArguments) -> None:
        super().__init__(program, arguments)
        self._stream = cuda.Stream()
        chunk, shared, given = arguments
        super().load(chunk, shared)
        super().take(given)
        self._replay = capture(super().go, self._stream)

    def load(self, chunk: ChunkTensors, shared: RoundTensors) -> None:
        with self._on_stream(chunk, shared):
            super().load(chunk, shared)

    def step(self, given: StepTensors, uncompiled: LocalStep) -> None:
        with self._on_stream(given):
            super().step(given, uncompiled)

    def go(self) -> None:
        self._replay()

    def unload(self, clients: int) -> Chunk:
        chunk = Chunk(*self.chunk[:4])
        out: Chunk = pytree.tree_map(lambda leaf: torch.empty_like(leaf[:clients]), chunk)
        with self._on_stream():
            pytree.tree_map(lambda into, leaf: into.copy_(leaf[:clients]), out, chunk)
        self.give_up()
        return out

    def give_up(self) -> None:
        cuda.current_stream().wait_stream(self._stream)

    def _on_stream(self, *trees: Any) -> AbstractContextManager[Any]:
        """A context manager that queues work on the lane's stream, behind the present work of the current stream. Python waits for none."""
        for tensor in pytree.tree_leaves(trees):
            tensor.record_stream(self._stream)
        self._stream.wait_stream(cuda.current_stream())
        context: AbstractContextManager[Any] = cuda.stream(self._stream)
        return context


class Graphs(Programs):
    """Captured local steps, one graph for each lane. They are not compiled first, which would take longer than it saves."""

    verb, kind = "captured", "graphs"

    def _make(self, local_step: LocalStep, arguments: StepArguments) -> StepProgram:
        return program_of(local_step, arguments)

    def _lane(self, program: StepProgram, arguments: StepArguments) -> Lane:
        began = time.perf_counter()
        lane = GraphLane(program, arguments)
        self._note(arguments, began)
        return lane
