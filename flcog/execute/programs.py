"""The local step of stacked clients as a compiled program, and the tensors on which programs work.

The tensors stay at their addresses, so that a program can be captured.
"""

import dataclasses
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from flcog.client.executor import Assignment
from flcog.client.program import ClientTensors, Program, with_states
from flcog.core.text import seconds
from flcog.core.trees import Tree
from flcog.core.types import Batch, Params, Slot
from flcog.execute.optimizer import State, TensorOptimizer
from flcog.execute.stacked_clients import Chunk, alive_or, gradient_of, over_clients
from flcog.functional.own_steps import add_in_place, among_rounds
from flcog.method import GlobalModel, Gradient, Note, Notes
from flcog.settings import Compile


class ChunkTensors(NamedTuple):
    """The stacked clients of a chunk, with the state of their optimisers."""

    params: Params
    buffers: Params
    tensors: ClientTensors
    totals: Params
    optimizer: State


class RoundTensors(NamedTuple):
    """The values that all clients of a round share. Numbers are tensors, because a program is compiled for fixed numbers."""

    params: Params
    buffers: Params
    broadcasts: list[Slot]
    rates: list[Tensor]
    round: Tensor


class StepTensors(NamedTuple):
    """The batches of one step.

    ``mask`` is a list with the mask of real rows, or an empty list if all rows are real. ``alive``: whether each client still trains.
    """

    inputs: Tree
    targets: Tree
    mask: list[Tensor]
    alive: Tensor
    step: Tensor


@dataclasses.dataclass(frozen=True)
class LocalStep:
    """The local step of a round's methods: the gradient with its corrections, the optimiser, and the hooks after its step."""

    program: Program
    optimizer: TensorOptimizer
    layers: Callable[[], AbstractContextManager[Any]]

    @torch.no_grad()
    def __call__(self, chunk: ChunkTensors, shared: RoundTensors, given: StepTensors) -> ChunkTensors:
        """Change ``chunk`` in place and return it. If a method's states have a new structure, return them in a new chunk instead."""
        program, model = self._program(shared, given), self.program.model
        # A module's own training_step may read the round's number, which must be a tensor to be no constant of the program.
        with among_rounds(model.module, shared.round) if model.trains_itself else nullcontext(), self.layers():  # type: ignore[arg-type]
            return self._step(program, chunk, shared, given)

    def _program(self, shared: RoundTensors, given: StepTensors) -> Program:
        """The client side of the round with these tensors."""
        optimisation = self.program.optimisation._replace(lr=shared.rates[0])  # type: ignore[arg-type]
        program = dataclasses.replace(
            self.program,
            received=GlobalModel(shared.params, shared.buffers),
            broadcasts=shared.broadcasts,
            optimisation=optimisation,
        )
        program.local_step = given.step  # type: ignore[assignment]
        return program

    def _step(self, program: Program, chunk: ChunkTensors, shared: RoundTensors, given: StepTensors) -> ChunkTensors:
        batch, step = Batch(given.inputs, given.targets, *given.mask), given.step
        # The forward pass may write into the parameters of finished clients, too, as nn.Embedding(max_norm=1) does.
        params = {name: value.clone() for name, value in chunk.params.items()}
        result: Gradient = _for_each(partial(gradient_of, program, step), params, chunk.buffers, chunk.tensors, batch)
        tensors = with_states(chunk.tensors, result.state)
        self.optimizer(params, result.values, chunk.optimizer, step, shared.rates)
        if program.followers:
            follow = partial(program.after_step, step)
            params, tensors = _for_each(follow, (params, chunk.params), result.buffers, tensors, batch)
        # A client that has finished is frozen. The state of its optimiser is not, because nothing reads it any more.
        add_in_place(chunk.totals, result.loss, result.logged, given.alive)

        def keep(old: Any, new: Any) -> None:
            pytree.tree_map(lambda into, value: into.copy_(alive_or(given.alive, value, into)), old, new)

        keep((chunk.params, chunk.buffers), (params, result.buffers))
        if pytree.tree_structure(tensors.states) != pytree.tree_structure(chunk.tensors.states):
            return chunk._replace(tensors=tensors)
        keep(chunk.tensors.states, tensors.states)
        return chunk


def _for_each(function: Callable[..., Any], params: Any, buffers: Params, tensors: ClientTensors, batch: Batch) -> Any:
    """A function of one client, applied to stacked clients. A single client runs without vmap, where convolutions may be faster."""
    if pytree.tree_leaves(params)[0].shape[0] > 1:
        return over_clients(function, params, buffers, tensors, batch)
    alone = pytree.tree_map(lambda value: None if value is None else value.squeeze(0), (params, buffers, tensors, batch))
    return pytree.tree_map(lambda value: value.unsqueeze(0), function(*alone))


StepArguments = tuple[ChunkTensors, RoundTensors, StepTensors]
StepProgram = Callable[..., None]


class NewStructure(Exception):
    """A method's state has another structure after the first local step than before it."""


def program_of(local_step: LocalStep, arguments: StepArguments) -> StepProgram:
    """The plain local step as a function that changes a flat list of tensors in place, for arguments like these."""
    tree = pytree.tree_structure(arguments)

    def program(*leaves: Tensor) -> None:
        chunk, shared, given = pytree.tree_unflatten(leaves, tree)
        if local_step(chunk, shared, given) is not chunk:
            raise NewStructure

    return program


def _empty_like(leaf: Tensor) -> Tensor:
    """A tensor of this form. One client's axis gets the same stride in all lanes: torch would compile again for another."""
    return torch.empty_like(leaf[0]).unsqueeze(0) if leaf.ndim and len(leaf) == 1 else torch.empty_like(leaf)


class Lane:
    """The tensors of a program. One chunk of clients after another is copied to them, trains there, and is copied out."""

    def __init__(self, program: StepProgram, like: StepArguments) -> None:
        leaves, tree = pytree.tree_flatten(like)
        self._program, self.tensors = program, [_empty_like(leaf) for leaf in leaves]
        self.chunk, self._shared, self._given = pytree.tree_unflatten(self.tensors, tree)

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
        self._program(*self.tensors)

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


OPTIONS: dict[str, Any] = {"constant_and_index_propagation": False}
"""With this option torch's compiler treats ``arange(n) * constant``, the beginning of keyed noise, as an address: a product of signed C++
numbers, which must not overflow. This product overflows on purpose, and a C++ compiler then wrote beyond the end of the noise."""


def compiled(function: Callable[..., None], examples: Sequence[Tensor]) -> Callable[..., None]:
    """``torch.compile`` of a function that changes its arguments in place.

    The operations are recorded once, on tensors without values. So torch compiles a list of operations without the Python around
    them (methods, modules and their attributes), and need not check at every call whether this has changed. The compiled program
    changes nothing: it returns the new contents of tensors, which are copied afterwards. torch 2.11 may move an operation that
    changes a parameter before an operation that reads it (https://github.com/pytorch/pytorch/pull/177816), and the gradient is wrong.
    """
    changed: list[int] = []

    def contents(*tensors: Tensor) -> list[Tensor]:
        copies = [tensor.clone() for tensor in tensors]
        before = [copy._version for copy in copies]
        function(*copies)
        changed[:] = [place for place, copy in enumerate(copies) if copy._version > before[place]]
        return [copies[place] for place in changed]

    graph = make_fx(contents, tracing_mode="fake", _allow_non_fake_inputs=True)(*examples)
    program: Callable[..., list[Tensor]] = torch.compile(graph, fullgraph=True, dynamic=False, options=OPTIONS)

    def change(*tensors: Tensor) -> None:
        torch._foreach_copy_([tensors[place] for place in changed], program(*tensors))

    return change


class Programs:
    """The compiled programs of a run, one for each list of methods that act in a round. Threads share them."""

    verb: str = "compiled"
    kind: Compile = True

    def __init__(self, notes: Notes) -> None:
        self._notes, self._lock = notes, threading.Lock()
        self._made: dict[Any, StepProgram] = {}
        self._failed, self._growing = set[tuple[int, ...]](), set[tuple[int, ...]]()

    @property
    def compiled(self) -> Compile:
        """The kind of programs, or False if every attempt has failed."""
        return self.kind if self._made or not self._failed else False

    def fails(self, assignment: Assignment) -> bool:
        """Whether compiling the round's methods has failed."""
        return _methods_of(assignment) in self._failed

    def states_grow(self, assignment: Assignment) -> bool:
        """Whether the round's methods fill their states in the first local step, which therefore runs uncompiled."""
        return _methods_of(assignment) in self._growing

    def lane(self, assignment: Assignment, local_step: LocalStep, arguments: StepArguments) -> Lane | None:
        """A new lane with a program for arguments like these.

        It is None if the first step must run uncompiled, or if compiling fails; then a warning says so and all steps run uncompiled.
        """
        key, methods = key_of(assignment, arguments), _methods_of(assignment)
        with self._lock:
            if self.fails(assignment):
                return None
            try:
                if key not in self._made:
                    self._made[key] = self._make(local_step, arguments)
                return self._lane(self._made[key], arguments)
            except torch.OutOfMemoryError:
                raise
            except NewStructure:
                (self._failed if self.states_grow(assignment) else self._growing).add(methods)
                return None
            # torch raises many types. An error of the user's comes again when the step runs uncompiled.
            except Exception as error:
                self._failed.add(methods)
                self._made.pop(key, None)
                reason = f"{type(error).__name__}: {(str(error).strip() or '-').splitlines()[0]}"
                warnings.warn(
                    f"trainer.compile: local steps run uncompiled, as they cannot be {self.verb} ({reason})", stacklevel=2
                )
                return None

    def _make(self, local_step: LocalStep, arguments: StepArguments) -> StepProgram:
        """Compile the program, which torch does when it first runs."""
        began, (chunk, shared, given) = time.perf_counter(), arguments
        program = compiled(program_of(local_step, arguments), [torch.empty_like(leaf) for leaf in pytree.tree_leaves(arguments)])
        lane = Lane(program, arguments)
        lane.load(chunk, shared)
        lane.take(given)
        lane.go()
        self._note(arguments, began)
        return program

    def _lane(self, program: StepProgram, arguments: StepArguments) -> Lane:
        return Lane(program, arguments)

    def _note(self, arguments: StepArguments, began: float) -> None:
        clients, took = len(arguments[0].totals["loss"]), seconds(time.perf_counter() - began)
        self._notes.add(Note("executor", f"the local step of {clients} client{'s' * (clients > 1)} was {self.verb} in {took}"))


def _methods_of(assignment: Assignment) -> tuple[int, ...]:
    return tuple(map(id, assignment.program.methods))


def key_of(assignment: Assignment, arguments: StepArguments) -> Any:
    """The key of a program: the methods, and the structure and shapes of the arguments."""
    leaves, tree = pytree.tree_flatten(arguments)
    return _methods_of(assignment), tree, tuple((leaf.shape, leaf.dtype) for leaf in leaves)
