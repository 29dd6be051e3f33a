"""The compiled programs of a run, and the tensors on which they work. These stay at their addresses, so that a program can be captured."""

import threading
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from flcog.client.executor import Assignment
from flcog.core.text import seconds
from flcog.execute.local_step import ChunkTensors, LocalStep, RoundTensors, StepTensors
from flcog.execute.stacked_clients import Chunk
from flcog.method import Note, Notes
from flcog.settings import Compile

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


class Lane:
    """The tensors of a program. One chunk of clients after another is copied to them, trains there, and is copied out."""

    def __init__(self, program: StepProgram, like: StepArguments) -> None:
        leaves, tree = pytree.tree_flatten(like)
        self._program, self.tensors = program, [torch.empty_like(leaf) for leaf in leaves]
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
