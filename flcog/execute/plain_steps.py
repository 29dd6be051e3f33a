"""The local steps of a chunk of stacked clients, run as plain Python. Compiled steps must give the same results."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from flcog.client.executor import Assignment
from flcog.client.program import ClientTensors, Program, differentiate_pure, with_states
from flcog.client.work import ClientWork
from flcog.core.trees import copied_from
from flcog.core.types import Batch, Params
from flcog.execute.optimizer import optimizer_like, stepper
from flcog.execute.stacking import announce_chunk, stacked_batches
from flcog.execute.trainer import Learner
from flcog.functional.own_steps import add_step
from flcog.method import Gradient
from flcog.settings import Compile


class Chunk(NamedTuple):
    """Stacked clients: all tensors have a leading client axis. ``totals`` are each client's sums of losses and logged values."""

    params: Params
    buffers: Params
    tensors: ClientTensors
    totals: Params


class PlainSteps:
    """Runs the local steps of stacked clients as one operation after another, without padding."""

    def __init__(self, learner: Learner) -> None:
        self._learner = learner

    @property
    def compiled(self) -> Compile:
        """Whether the steps are compiled, or captured as CUDA graphs."""
        return False

    def announce(self, assignment: Assignment, works: Sequence[ClientWork]) -> None:
        """Tell the reader which clients train next."""
        announce_chunk(works, assignment.reader)

    def padded(self, assignment: Assignment, works: Sequence[ClientWork]) -> list[ClientWork]:
        """The clients to stack: the given ones, and inactive clients behind them if the number of clients is fixed."""
        return list(works)

    def reduce(self, clients: int) -> None:
        """Reduce the chunk size after memory ran out."""

    @torch.no_grad()
    def run(self, assignment: Assignment, works: Sequence[ClientWork], chunk: Chunk) -> Chunk | None:
        """The clients after their last step; None if they must be stacked and run again, because compiling failed.

        The first client has the most steps. The tensors of the chunk may change.
        """
        program, (params, buffers, tensors, totals) = assignment.program, chunk
        del chunk  # The steps replace its tensors, whose memory should become free.
        stacked = dict(zip(map(id, self._learner.model.params.values()), params.values(), strict=True))
        advance = stepper(optimizer_like(self._learner.optimizer, stacked), list(params.values()))
        alive_at = torch.arange(works[0].num_steps, device=totals["loss"].device)[:, None] < tensors.num_steps
        with self._learner.layers():
            for step, given in enumerate(stacked_batches(works, assignment.reader)):
                alive, batch = alive_at[step], Batch(*given)
                ragged = works[-1].num_steps <= step
                program.local_step = step
                # The forward pass may write into the parameters of finished clients, too, as nn.Embedding(max_norm=1) does.
                before = {name: value.clone() for name, value in params.items()} if ragged or program.followers else params
                gradient: Gradient = over_clients(partial(gradient_of, program, step), params, buffers, tensors, batch)
                add_step(totals, gradient.loss, gradient.logged, alive)
                new_tensors = with_states(tensors, copied_from(gradient.state, params.values()) if gradient.state else {})
                advance([gradient.values[name] for name in params])
                after = params
                if program.followers:
                    follow = partial(program.after_step, step)
                    after, new_tensors = over_clients(follow, (params, before), gradient.buffers, new_tensors, batch)
                    new_tensors = new_tensors._replace(states=copied_from(new_tensors.states, params.values()))
                if ragged:
                    after, new_buffers, states = (
                        pytree.tree_map(lambda new, old: alive_or(alive, new, old), new, old)  # noqa: B023 - called at once
                        for new, old in ((after, before), (gradient.buffers, buffers), (new_tensors.states, tensors.states))
                    )
                    buffers, tensors = new_buffers, tensors._replace(states=states)
                else:
                    buffers, tensors = gradient.buffers, new_tensors
                for name, value in after.items():
                    if value is not params[name]:
                        params[name].copy_(value)
        # The optimiser has attached gradients to the parameters, which must not stay in memory with a client's results.
        return Chunk({name: value.detach() for name, value in params.items()}, buffers, tensors, totals)


def gradient_of(
    program: Program, step: int | Tensor, params: Params, buffers: Params, tensors: ClientTensors, batch: Batch
) -> Gradient:
    """The gradient that one client's optimiser receives, with the corrections of all methods."""
    contexts = program.contexts(tensors, buffers, step) if program.needs_context else []
    base = program.pure_gradient(differentiate_pure, buffers, contexts)
    return program.gradient(base, params, batch, contexts, tensors.masks)


def over_clients(function: Callable[..., Any], params: Any, buffers: Params, tensors: ClientTensors, batch: Batch) -> Any:
    """A function of one client, applied to stacked clients."""
    in_dims = (0, 0, 0, Batch(0, 0, None if batch.mask is None else 0))  # type: ignore[arg-type]
    return torch.func.vmap(function, in_dims=in_dims, randomness="different")(params, buffers, tensors, batch)


def alive_or(alive: Tensor, new: Tensor, old: Tensor) -> Tensor:
    """The new values of clients that still train, and the old values of the others."""
    return torch.where(alive.view(-1, *[1] * (new.ndim - 1)), new, old)
