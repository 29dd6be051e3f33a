"""One local step of stacked clients as a function of tensors alone, which changes them in place: what can be compiled and captured."""

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
from flcog.execute.plain_steps import after_step_of, alive_or, gradient_of, over_clients
from flcog.method import Gradient
from flcog.own_steps import among_rounds


class Held(NamedTuple):
    """What clients hold while they train: a :class:`Chunk`, and the optimiser's state."""

    params: Params
    buffers: Params
    tensors: ClientTensors
    total: Tensor
    optimizer: State


class Shared(NamedTuple):
    """What is the same for all clients of a round. Numbers are tensors: a program would have to be compiled anew for other numbers."""

    params: Params
    buffers: Params
    broadcasts: list[Slot]
    rates: list[Tensor]
    round: Tensor


class Given(NamedTuple):
    """What a step is given."""

    inputs: Tree
    targets: Tree
    mask: list[Tensor]
    """One, or none where every row counts."""
    alive: Tensor
    """Which clients still train, bool [clients]."""
    step: Tensor


@dataclasses.dataclass(frozen=True)
class LocalStep:
    """The step of all methods of a round around a model: gradient with its corrections, optimiser, and what follows it.

    Args:
        program: the round's client side, of which the methods and the model count here.
        optimizer: steps the parameters.
        layers: the context in which they are computed.
    """

    program: Program
    optimizer: TensorOptimizer
    layers: Callable[[], AbstractContextManager[Any]]

    @torch.no_grad()
    def __call__(self, held: Held, shared: Shared, given: Given) -> Held:
        """Changes ``held`` in place and returns it; with other slots where a method's have another structure after its first step."""
        program, model = self._program(shared, given), self.program.model
        # A module with a training_step of its own may ask for the round, whose number would else be a constant of the program.
        with among_rounds(model.module, shared.round) if model.trains_itself else nullcontext(), self.layers():  # type: ignore[arg-type]
            return self._step(program, held, shared, given)

    def _program(self, shared: Shared, given: Given) -> Program:
        """The round's program on these tensors."""
        optimisation = self.program.optimisation._replace(lr=shared.rates[0])  # type: ignore[arg-type]
        program = dataclasses.replace(
            self.program,
            global_params=shared.params,
            global_buffers=shared.buffers,
            broadcasts=shared.broadcasts,
            optimisation=optimisation,
        )
        program.local_step = given.step  # type: ignore[assignment]
        return program

    def _step(self, program: Program, held: Held, shared: Shared, given: Given) -> Held:
        batch, step = Batch(given.inputs, given.targets, *given.mask), given.step
        result: Gradient = _for_each(partial(gradient_of, program, step), held.params, held.buffers, held.tensors, batch)
        tensors = with_states(held.tensors, result.state)
        params = {name: value.clone() for name, value in held.params.items()}
        self.optimizer(params, result.values, held.optimizer, step, shared.rates)
        if program.followers:
            follow = partial(after_step_of, program, step)
            params, tensors = _for_each(follow, (params, held.params), result.buffers, tensors, batch)
        # A client that has finished is frozen. The state of its optimiser is not, because nothing reads it any more.
        held.total.add_(torch.where(given.alive, result.loss, 0.0))

        def keep(old: Any, new: Any) -> None:
            pytree.tree_map(lambda into, value: into.copy_(alive_or(given.alive, value, into)), old, new)

        keep((held.params, held.buffers), (params, result.buffers))
        if pytree.tree_structure(tensors.clients) != pytree.tree_structure(held.tensors.clients):
            return held._replace(tensors=tensors)
        keep(held.tensors.clients, tensors.clients)
        return held


def _for_each(function: Callable[..., Any], params: Any, buffers: Params, tensors: ClientTensors, batch: Batch) -> Any:
    """A function of one client, applied to stacked clients. A single client runs without vmap, where convolutions may be faster."""
    if pytree.tree_leaves(params)[0].shape[0] > 1:
        return over_clients(function, params, buffers, tensors, batch)
    alone = pytree.tree_map(lambda value: None if value is None else value.squeeze(0), (params, buffers, tensors, batch))
    return pytree.tree_map(lambda value: value.unsqueeze(0), function(*alone))
