"""One local step of stacked clients as a function that changes tensors in place, which can be compiled and captured."""

import dataclasses
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from flcog.client.program import ClientTensors, Program, with_states
from flcog.core.trees import Tree
from flcog.core.types import Batch, Params, Slot
from flcog.execute.optimizer import State, TensorOptimizer
from flcog.execute.stacked_clients import alive_or, gradient_of, over_clients
from flcog.functional.own_steps import add_in_place, among_rounds
from flcog.method import GlobalModel, Gradient


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

    Args:
        inputs, targets: [clients, rows, ...].
        mask: a list with the mask of real rows, or an empty list if all rows are real.
        alive: whether each client still trains, bool [clients].
        step: the number of the step.
    """

    inputs: Tree
    targets: Tree
    mask: list[Tensor]
    alive: Tensor
    step: Tensor


@dataclasses.dataclass(frozen=True)
class LocalStep:
    """The local step of a round's methods: the gradient with its corrections, the optimiser, and the hooks after its step.

    Args:
        program: the client side of the round; this class uses its methods and its model.
        optimizer: updates the parameters.
        layers: wraps layers that are slow or fail when they are batched.
    """

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
