"""Local steps compiled by ``torch.compile``: one program for all steps, chunks and rounds."""

import dataclasses
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from flcog.apply import ModelFunction
from flcog.client.executor import Assignment, Stopped
from flcog.client.work import ClientWork
from flcog.core.precision import number_dtype
from flcog.core.text import seconds
from flcog.core.types import Slot
from flcog.execute.compiler import compiled
from flcog.execute.lane import Lane, Layout, first_of, layout_of
from flcog.execute.local_step import Given, Held, LocalStep, Shared
from flcog.execute.optimizer import TensorOptimizer
from flcog.execute.plain_steps import Chunk, PlainSteps
from flcog.execute.stacking import announce_chunk, stacked_batches
from flcog.method import ExecutorNote, Notes
from flcog.settings import Compile


class Made(NamedTuple):
    """A program, and the tensors that it takes."""

    program: Callable[..., None]
    tree: Any
    layouts: list[Layout]


class SlotsGrow(Exception):
    """A method's slot has another structure after the first step than before."""


class Programs:
    """The compiled programs of a run: one for each list of methods that act in a round. Threads share them.

    Args:
        notes: where a note says what compiling took.
    """

    verb: str = "compiled"
    kind: Compile = True

    def __init__(self, notes: Notes) -> None:
        self._notes, self._lock = notes, threading.Lock()
        self._made: dict[Any, Made] = {}
        self._failed, self._growing = set[tuple[int, ...]](), set[tuple[int, ...]]()

    @property
    def compiled(self) -> Compile:
        """What it makes, unless that was tried and failed."""
        return self.kind if self._made or not self._failed else False

    def fails(self, assignment: Assignment) -> bool:
        """Whether the round's methods have turned out not to be compilable."""
        return methods_of(assignment) in self._failed

    def slots_grow(self, assignment: Assignment) -> bool:
        """Whether they have turned out to fill their slots in the first step, which then runs uncompiled."""
        return methods_of(assignment) in self._growing

    def lane(self, assignment: Assignment, step: LocalStep, held: Held, shared: Shared, given: Given) -> Lane | None:
        """A new lane with the program for tensors like these; None where the first step must run uncompiled, or all must, which is
        said."""
        key = key_of(assignment, held, shared, given)
        with self._lock:
            if self.fails(assignment):
                return None
            try:
                if key not in self._made:
                    self._made[key] = self._make(step, held, shared, given)
                return self._lane(self._made[key], held, shared, given)
            except torch.OutOfMemoryError:
                raise
            except SlotsGrow:
                (self._failed if self.slots_grow(assignment) else self._growing).add(methods_of(assignment))
                return None
            except Exception as error:  # torch has many for what it cannot compile; an error of the user's comes again uncompiled
                self._failed.add(methods_of(assignment))
                self._made.pop(key, None)
                reason = f"{type(error).__name__}: {(str(error).strip() or '-').splitlines()[0]}"
                warnings.warn(
                    f"trainer.compile: local steps run uncompiled, as they cannot be {self.verb} ({reason})", stacklevel=2
                )
                return None

    def _make(self, step: LocalStep, held: Held, shared: Shared, given: Given) -> Made:
        """The program, compiled."""
        began = time.perf_counter()
        leaves, tree = pytree.tree_flatten((held, shared, given))
        layouts = [layout_of(leaf) for leaf in leaves]
        made = Made(compiled(on_tensors(step, tree), [layout.empty() for layout in layouts]), tree, layouts)
        lane = Lane(*made)
        lane.load(held, shared)
        lane.take(given)
        lane.go()  # it is now that torch compiles
        self._say(held, began)
        return made

    def _lane(self, made: Made, held: Held, shared: Shared, given: Given) -> Lane:
        return Lane(*made)

    def _say(self, held: Held, began: float) -> None:
        clients, took = len(held.total), seconds(time.perf_counter() - began)
        self._notes.add(ExecutorNote(f"the local step of {clients} client{'s' * (clients > 1)} was {self.verb} in {took}"))


def methods_of(assignment: Assignment) -> tuple[int, ...]:
    return tuple(map(id, assignment.program.methods))


def key_of(assignment: Assignment, held: Held, shared: Shared, given: Given) -> Any:
    """For what a program is made: methods, and the shapes of tensors."""
    leaves, tree = pytree.tree_flatten((held, shared, given))
    return methods_of(assignment), tree, tuple((leaf.shape, leaf.dtype) for leaf in leaves)


def on_tensors(step: LocalStep, tree: Any) -> Callable[..., None]:
    """The step as a function of nothing but tensors."""

    def function(*leaves: Tensor) -> None:
        held, shared, given = pytree.tree_unflatten(leaves, tree)
        if step(held, shared, given) is not held:
            raise SlotsGrow

    return function


class CompiledSteps:
    """Runs chunks through a compiled program, made for one number of clients and of rows.

    What does not fit is padded: clients by such as do nothing, batches by rows that do not count. Chunks and batches that would be
    mostly padding, and batches of models that would feel it, run uncompiled. None of this depends on what has run before, so a run
    that goes on from a checkpoint does the same.

    Args:
        model: the client's model.
        optimizer: the module's own optimiser.
        programs: what is compiled already.
        clients: of a chunk.
        rows: of a batch.
        layers: the context in which they are computed.
        lanes: on how many lanes, in turn.
    """

    def __init__(
        self,
        model: ModelFunction,
        optimizer: torch.optim.Optimizer,
        programs: Programs,
        clients: int,
        rows: int,
        layers: Callable[[], AbstractContextManager[Any]] = nullcontext,
        lanes: int = 1,
    ) -> None:
        self._model, self._programs, self._clients, self._rows = model, programs, clients, rows
        self._optimizer, self._layers = TensorOptimizer(optimizer, model.params), layers
        self._plain = PlainSteps(model, optimizer, layers)
        self._num_lanes, self._lanes, self._turn = lanes, dict[Any, list[Lane]](), 0

    @property
    def compiled(self) -> Compile:
        return self._programs.compiled

    def announce(self, assignment: Assignment, works: Sequence[ClientWork]) -> None:
        fits = bool(works) and self.fits(assignment, works)
        announce_chunk(self.padded(assignment, works) if fits else works, assignment.reader, self._num_rows if fits else None)

    @property
    def _num_rows(self) -> int | None:
        """To how many rows batches are padded."""
        return None if self._model.feels_padding else self._rows

    def padded(self, assignment: Assignment, works: Sequence[ClientWork]) -> list[ClientWork]:
        if not self.fits(assignment, works):
            return list(works)
        return [*works, *[works[0]] * (self._clients - len(works))]

    def fewer(self, clients: int) -> None:
        self._clients = clients
        self.use_lanes(self._num_lanes, 0)  # those that there are have room for more clients

    def use_lanes(self, lanes: int, kept: int) -> None:
        """Go on with so many lanes, of which some of those that there are may be kept; no client is under way on any."""
        self._num_lanes, self._turn = lanes, 0
        for own in self._lanes.values():
            for lane in own:
                lane.give_up()
            del own[kept:]

    def run(self, assignment: Assignment, works: Sequence[ClientWork], chunk: Chunk) -> Chunk | None:
        if not self.fits(assignment, works):
            return self._plain.run(assignment, works, chunk)
        collect = self.launch(assignment, works, chunk)
        return None if collect is None else collect()

    @torch.no_grad()
    def launch(self, assignment: Assignment, works: Sequence[ClientWork], chunk: Chunk) -> Callable[[], Chunk] | None:
        """Run all steps of clients that fit. What is returned waits for them; None where they must be stacked anew."""
        program, device = assignment.program, chunk.total.device
        # What is compiled or captured outlives the round, and shall not keep the round's model.
        bare = dataclasses.replace(program, global_params={}, global_buffers={}, broadcasts=[])
        step = LocalStep(bare, self._optimizer, self._layers)
        held = Held(*chunk, self._optimizer.fresh_state(chunk.params))
        shared = Shared(
            program.global_params,
            program.global_buffers,
            _tensors(program.broadcasts, device),
            self._optimizer.rates(assignment.rates, device),
            torch.tensor(assignment.round, device=device),
        )
        lane, apart = None, self._programs.slots_grow(assignment)
        for given in self._given(assignment, works, device):
            if assignment.stop is not None and assignment.stop.is_set():
                raise Stopped
            if apart:
                held, apart = step(held, shared, given), False
                continue
            if lane is None:
                lane = self._lane(assignment, step, held, shared, given)
                if lane is None:
                    return None
                lane.load(held, shared)
            lane.step(given, step)
        if lane is not None:
            return partial(lane.unload, len(works))
        return lambda: first_of(held, len(works))  # a single step, which ran apart

    def _given(self, assignment: Assignment, works: Sequence[ClientWork], device: torch.device) -> Iterator[Given]:
        """What the steps are given. Padding clients, behind the others, never act."""
        numbers = torch.arange(works[0].num_steps, device=device)
        steps = torch.tensor([work.num_steps for work in works] + [0] * (self._clients - len(works)), device=device)
        alive, padded = numbers[:, None] < steps, self.padded(assignment, works)
        for number, (inputs, targets, mask) in enumerate(stacked_batches(padded, assignment.reader, self._num_rows)):
            yield Given(inputs, targets, [] if mask is None else [mask], alive[number], numbers[number])

    def _lane(self, assignment: Assignment, step: LocalStep, held: Held, shared: Shared, given: Given) -> Lane | None:
        """The next lane for this round's methods. Those for others are given up, as they seldom come back."""
        key = key_of(assignment, held, shared, given)
        if key not in self._lanes:
            self.use_lanes(self._num_lanes, 0)
            self._lanes = {key: []}
        lanes = self._lanes[key]
        if len(lanes) < self._num_lanes:
            lane = self._programs.lane(assignment, step, held, shared, given)
            lanes += [] if lane is None else [lane]
            return lane
        self._turn += 1
        return lanes[(self._turn - 1) % self._num_lanes]

    def fits(self, assignment: Assignment, works: Sequence[ClientWork]) -> bool:
        """Whether the clients are run by the compiled program."""
        if self._programs.fails(assignment) or 2 * len(works) < self._clients:
            return False
        rows = max(int(work.sizes.max()) for work in works)
        return rows == self._rows == works[0].sizes[0] if self._model.feels_padding else 2 * rows >= self._rows


def _tensors(broadcasts: Sequence[Slot], device: torch.device) -> list[Slot]:
    """What methods broadcast as tensors on the device: a program would have to be compiled anew for other numbers, and a CUDA graph
    keeps the number that a tensor on the CPU held when it was captured."""

    def tensor(value: Tensor | float) -> Tensor:
        if isinstance(value, Tensor):
            return value.to(device)
        return torch.tensor(value, device=device, dtype=number_dtype() if isinstance(value, float) else None)

    made: list[Slot] = pytree.tree_map_only((int, float, Tensor), tensor, list(broadcasts))
    return made
