"""Compiled local steps: one program runs all steps, chunks and rounds."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from flcog.client.executor import Assignment, StopRequest
from flcog.client.work import ClientWork
from flcog.core.precision import number_dtype
from flcog.core.types import Slot
from flcog.execute.one_client import Learner
from flcog.execute.optimizer import TensorOptimizer
from flcog.execute.programs import (
    ChunkTensors,
    Lane,
    LocalStep,
    Programs,
    RoundTensors,
    StepArguments,
    StepTensors,
    first_of,
    key_of,
)
from flcog.execute.stacked_clients import Chunk, StackedClients
from flcog.execute.stacking import stacked_batches
from flcog.method import GlobalModel
from flcog.settings import Compile


class CompiledClients(StackedClients):
    """Runs chunks through a compiled program, which is made for a fixed number of clients and rows.

    Chunks are padded with inactive clients, and batches with masked rows. Chunks and batches that would be mostly padding run
    uncompiled, and so do batches of models that feel padding. These rules depend only on the chunk, so a resumed run does the same.
    """

    def __init__(self, learner: Learner, programs: Programs, clients: int, rows: int, lanes: int = 1) -> None:
        super().__init__(learner)
        self._programs, self._clients, self._rows = programs, clients, rows
        self._optimizer = TensorOptimizer(learner.optimizer, learner.model.params)
        self._num_lanes, self._lanes, self._turn = lanes, dict[Any, list[Lane]](), 0

    @property
    def compiled(self) -> Compile:
        return self._programs.compiled

    def padded(self, assignment: Assignment, works: Sequence[ClientWork]) -> list[ClientWork]:
        if not self.fits(assignment, works):
            return list(works)
        return [*works, *[works[0]] * (self._clients - len(works))]

    def reduce(self, clients: int) -> None:
        self._clients = clients
        self._drop_lanes()  # they have room for more clients

    def _drop_lanes(self) -> None:
        """Drop the lanes, on which no client is training."""
        for lane in (lane for lanes in self._lanes.values() for lane in lanes):
            lane.give_up()
        self._lanes, self._turn = {}, 0

    def run(self, assignment: Assignment, works: Sequence[ClientWork], chunk: Chunk) -> Chunk | None:
        if not self.fits(assignment, works):
            return super().run(assignment, works, chunk)
        collect = self.launch(assignment, works, chunk)
        return None if collect is None else collect()

    @torch.no_grad()
    def launch(self, assignment: Assignment, works: Sequence[ClientWork], chunk: Chunk) -> Callable[[], Chunk] | None:
        """Queue all steps of clients that fit, and return a function that waits for them; None if they must be stacked again."""
        local_step, tensors, shared = self._arguments(assignment, chunk)
        lane, apart = None, self._programs.states_grow(assignment)
        for given in self._batches(assignment, works, chunk.totals["loss"].device):
            if assignment.stop is not None and assignment.stop.is_set():
                raise StopRequest
            if apart:
                tensors, apart = local_step(tensors, shared, given), False
                continue
            if lane is None:
                lane = self._lane(assignment, local_step, (tensors, shared, given))
                if lane is None:
                    return None
                lane.load(tensors, shared)
            lane.step(given, local_step)
        if lane is not None:
            return partial(lane.unload, len(works))
        return lambda: first_of(tensors, len(works))  # after a single step, which ran uncompiled

    def _arguments(self, assignment: Assignment, chunk: Chunk) -> tuple[LocalStep, ChunkTensors, RoundTensors]:
        """The local step of a round with the tensors of the chunk and of the round."""
        program, device = assignment.program, chunk.totals["loss"].device
        # A program outlives the round, and must not keep the round's model in memory.
        bare = dataclasses.replace(program, received=GlobalModel({}, {}), broadcasts=[])
        shared = RoundTensors(
            program.received.params,
            program.received.buffers,
            _tensors(program.broadcasts, device),
            self._optimizer.rates(assignment.rates, device),
            torch.tensor(assignment.round, device=device),
        )
        tensors = ChunkTensors(*chunk, self._optimizer.fresh_state(chunk.params))
        return LocalStep(bare, self._optimizer, self.learner.layers), tensors, shared

    def _batches(self, assignment: Assignment, works: Sequence[ClientWork], device: torch.device) -> Iterator[StepTensors]:
        """The batches of all steps. Padding clients come last and never act."""
        numbers = torch.arange(works[0].num_steps, device=device)
        steps = torch.tensor([work.num_steps for work in works] + [0] * (self._clients - len(works)), device=device)
        alive, padded = numbers[:, None] < steps, self.padded(assignment, works)
        rows = None if self.model.feels_padding else self._rows
        for number, (inputs, targets, mask) in enumerate(stacked_batches(padded, assignment.reader, rows)):
            yield StepTensors(inputs, targets, [] if mask is None else [mask], alive[number], numbers[number])

    def _lane(self, assignment: Assignment, local_step: LocalStep, arguments: StepArguments) -> Lane | None:
        """The next lane for this round's methods. Lanes for other methods are dropped, because these seldom come back."""
        key = key_of(assignment, arguments)
        if key not in self._lanes:
            self._drop_lanes()
            self._lanes[key] = []
        lanes = self._lanes[key]
        if len(lanes) < self._num_lanes:
            lane = self._programs.lane(assignment, local_step, arguments)
            lanes += [] if lane is None else [lane]
            return lane
        self._turn += 1
        return lanes[(self._turn - 1) % self._num_lanes]

    def fits(self, assignment: Assignment, works: Sequence[ClientWork]) -> bool:
        """Whether the compiled program runs these clients."""
        if self._programs.fails(assignment) or 2 * len(works) < self._clients:
            return False
        rows = max(int(work.sizes.max()) for work in works)
        return rows == self._rows == works[0].sizes[0] if self.model.feels_padding else 2 * rows >= self._rows


def _tensors(broadcasts: Sequence[Slot], device: torch.device) -> list[Slot]:
    """The broadcasts of methods as tensors on the device.

    A program is compiled for fixed numbers, and a CUDA graph keeps the value that a CPU tensor had when it was captured.
    """

    def tensor(value: Tensor | float) -> Tensor:
        if isinstance(value, Tensor):
            return value.to(device)
        return torch.tensor(value, device=device, dtype=number_dtype() if isinstance(value, float) else None)

    made: list[Slot] = pytree.tree_map_only((int, float, Tensor), tensor, list(broadcasts))
    return made
