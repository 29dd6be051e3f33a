"""The local steps of a chunk of stacked clients, one after another: the plain way, to which every other must be equal."""

import inspect
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from flcog.apply import ModelFunction
from flcog.client.executor import Assignment
from flcog.client.program import ClientTensors, Program, copied_from, differentiate_pure, with_states
from flcog.client.work import ClientWork
from flcog.core.trees import Tree
from flcog.core.types import Batch, Params
from flcog.execute.sgd import stepper
from flcog.execute.stacking import announce_chunk, stacked_batches
from flcog.method import Gradient
from flcog.settings import Compile


class Chunk(NamedTuple):
    """Stacked clients: all tensors have a leading client axis."""

    params: Params
    buffers: Params
    tensors: ClientTensors
    total: Tensor
    """Sum of each client's task losses so far."""


class Steps(Protocol):
    """Trains stacked clients."""

    @property
    def compiled(self) -> Compile:
        """Whether it runs a compiled program."""

    def announce(self, assignment: Assignment, works: Sequence[ClientWork]) -> None:
        """Tell the reader of clients that come next."""

    def padded(self, assignment: Assignment, works: Sequence[ClientWork]) -> list[ClientWork]:
        """The clients that are to be stacked, among which, behind the others, may be some that only fill up."""

    def fewer(self, clients: int) -> None:
        """Told that from now on only so many clients are stacked, for want of memory."""

    def run(self, assignment: Assignment, works: Sequence[ClientWork], chunk: Chunk) -> Chunk | None:
        """The clients after their last step; None where they must be stacked anew, as it has turned out that another way is needed.

        Args:
            assignment: the round's.
            works: the clients; the first has the most steps.
            chunk: the clients, padded, before their first step; it may be changed.
        """


class PlainSteps:
    """As Python says, one operation after another.

    Args:
        model: the client's model.
        optimizer: the module's own optimiser, whose settings are copied.
        layers: the context in which they are computed.
    """

    compiled: Compile = False

    def __init__(
        self,
        model: ModelFunction,
        optimizer: torch.optim.Optimizer,
        layers: Callable[[], AbstractContextManager[Any]] = nullcontext,
    ) -> None:
        self._model, self._optimizer, self._layers = model, optimizer, layers

    def announce(self, assignment: Assignment, works: Sequence[ClientWork]) -> None:
        announce_chunk(works, assignment.reader)

    def padded(self, assignment: Assignment, works: Sequence[ClientWork]) -> list[ClientWork]:
        return list(works)

    def fewer(self, clients: int) -> None:
        """Any number of clients is run in the same way."""

    @torch.no_grad()
    def run(self, assignment: Assignment, works: Sequence[ClientWork], chunk: Chunk) -> Chunk:
        program, (params, buffers, tensors, total) = assignment.program, chunk
        del chunk  # of which steps replace one part after another
        optimizer = optimizer_like(self._optimizer, dict(zip(map(id, self._model.params.values()), params.values(), strict=True)))
        advance = stepper(optimizer, list(params.values()))
        alive_at = torch.arange(works[0].num_steps, device=total.device)[:, None] < tensors.num_steps
        with self._layers():
            for step, (inputs, targets, mask) in enumerate(stacked_batches(works, assignment.reader)):
                alive = alive_at[step]
                ragged = works[-1].num_steps <= step
                program.local_step = step
                gradient = _over_clients(program, step)(params, buffers, tensors, inputs, targets, mask)
                total += torch.where(alive, gradient.loss, 0.0)
                before = {name: value.clone() for name, value in params.items()} if ragged or program.followers else params
                new_tensors = with_states(tensors, copied_from(gradient.state, params.values()) if gradient.state else {})
                advance([gradient.values[name] for name in params])
                after = params
                if program.followers:
                    after, new_tensors = torch.func.vmap(
                        lambda p, old, b, i, t, m, tensors: program.after_step(p, old, b, Batch(i, t, m), tensors, step),  # noqa: B023 - called at once
                        in_dims=(0, 0, 0, 0, 0, None if mask is None else 0, 0),
                        randomness="different",
                    )(params, before, gradient.buffers, inputs, targets, mask, new_tensors)
                    new_tensors = new_tensors._replace(clients=copied_from(new_tensors.clients, params.values()))
                if ragged:
                    after, new_buffers, clients = (
                        pytree.tree_map(lambda new, old: alive_or(alive, new, old), new, old)  # noqa: B023 - called at once
                        for new, old in ((after, before), (gradient.buffers, buffers), (new_tensors.clients, tensors.clients))
                    )
                    buffers, tensors = new_buffers, tensors._replace(clients=clients)
                else:
                    buffers, tensors = gradient.buffers, new_tensors
                for name, value in after.items():
                    if value is not params[name]:
                        params[name].copy_(value)
        # Parameters are leaves with gradients attached; what is kept of a client must not drag those along.
        return Chunk({name: value.detach() for name, value in params.items()}, buffers, tensors, total)


def _over_clients(program: Program, step: int) -> Any:
    """One local step's gradient, for stacked clients."""

    def gradient(
        params: Params, buffers: Params, tensors: ClientTensors, inputs: Tree, targets: Tree, mask: Tensor | None
    ) -> Gradient:
        contexts = program.contexts(tensors, buffers, step) if program.needs_context else []
        base = program.pure_gradient(differentiate_pure, buffers, contexts)
        return program.gradient(base, params, Batch(inputs, targets, mask), contexts, tensors.masks)

    def mapped(
        params: Params, buffers: Params, tensors: ClientTensors, inputs: Tree, targets: Tree, mask: Tensor | None
    ) -> Gradient:
        in_dims = (0, 0, 0, 0, 0, None if mask is None else 0)
        return torch.func.vmap(gradient, in_dims=in_dims, randomness="different")(params, buffers, tensors, inputs, targets, mask)

    return mapped


def alive_or(alive: Tensor, new: Tensor, old: Tensor) -> Tensor:
    """What is new of the clients that still train, what is old of the others."""
    return torch.where(alive.view(-1, *[1] * (new.ndim - 1)), new, old)


ELEMENTWISE = (
    torch.optim.SGD,
    torch.optim.Adam,
    torch.optim.AdamW,
    torch.optim.Adagrad,
    torch.optim.Adadelta,
    torch.optim.Adamax,
    torch.optim.NAdam,
    torch.optim.RAdam,
    torch.optim.RMSprop,
    torch.optim.Rprop,
    torch.optim.ASGD,
)
"""Optimisers that treat every element by itself, so that one on stacked parameters equals one per client."""


def optimizer_like(optimizer: torch.optim.Optimizer, counterpart: dict[int, Tensor]) -> torch.optim.Optimizer:
    """The same optimiser, settings and groups included, on other tensors (given by the ``id`` of the ones they stand for)."""
    accepted = inspect.signature(type(optimizer).__init__).parameters
    groups = [
        {**{k: v for k, v in group.items() if k != "params"}, "params": [counterpart[id(p)] for p in group["params"]]}
        for group in optimizer.param_groups
    ]
    return type(optimizer)(groups, **{name: value for name, value in optimizer.defaults.items() if name in accepted})
