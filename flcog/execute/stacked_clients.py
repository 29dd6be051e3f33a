"""Trains stacked clients: one batched forward and backward pass, and one optimiser step for all. Compiled steps give the same results."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from flcog.client.executor import Assignment, Result, longest_first
from flcog.client.program import ClientTensors, Program, differentiate_pure, with_states
from flcog.client.work import ClientWork
from flcog.core.global_streams import seed_streams
from flcog.core.precision import number_dtype
from flcog.core.trees import copied_from
from flcog.core.types import Batch, Params, Slot
from flcog.execute.one_client import ClientTrainer, add_note, own_steps, widened
from flcog.execute.optimizer import optimizer_like, stepper
from flcog.execute.stacking import by_client, stacked_batches
from flcog.functional.own_steps import add_step, means, zeros_for
from flcog.method import Gradient
from flcog.wire.envelope import Manifest


class Chunk(NamedTuple):
    """Stacked clients: all tensors have a leading client axis. ``totals`` are each client's sums of losses and logged values."""

    params: Params
    buffers: Params
    tensors: ClientTensors
    totals: Params


class StackedClients(ClientTrainer):
    """Trains stacked clients: one batched forward and backward pass, and one optimiser step for all.

    An elementwise optimiser on stacked parameters equals one optimiser per client. A client that has finished is frozen.
    """

    def groups(self, works: Sequence[ClientWork]) -> list[list[ClientWork]]:
        """Groups of clients that may be stacked. Where a model is sensitive to padding, the batches of a group have the same sizes."""
        if not self.model.feels_padding:
            return [longest_first(works)]
        groups: dict[bytes, list[ClientWork]] = {}
        for work in works:
            groups.setdefault(work.sizes.tobytes(), []).append(work)
        return [longest_first(group) for group in groups.values()]

    def train(self, assignment: Assignment, works: Sequence[ClientWork]) -> Result:
        with self.named(assignment, works):
            return self.train_chunk(assignment, works)

    @contextmanager
    def named(self, assignment: Assignment, works: Sequence[ClientWork]) -> Iterator[None]:
        """Add a note with the clients and the round to an error inside."""
        try:
            with own_steps(self.model, assignment.round):
                yield
        except Exception as error:
            names_step = self.compiled and len(works) == 1
            hint = (
                "compile=false names the local step" if names_step else "executor=loop takes every hook, and names the local step"
            )
            add_note(error, assignment, works, f"; trainer.{hint}")
            raise

    @torch.no_grad()
    def begin(self, assignment: Assignment, works: Sequence[ClientWork]) -> Chunk:
        """The stacked clients before their first step."""
        program, num_clients = assignment.program, len(works)
        assignment.set_rates(self.learner.optimizer)
        device = next(iter(program.received.params.values())).device
        if self.learner.seeds_streams:
            seed_streams(assignment.stream_seed(works[0].client), device)
        params = {name: _repeat(value, num_clients) for name, value in program.received.params.items()}
        initial = self.model.buffers | self.model.initial | program.received.buffers
        buffers = {name: _repeat(value, num_clients) for name, value in initial.items()}
        for name, keys in assignment.dropout_keys(self.model.dropout_keys, [work.client for work in works]).items():
            buffers[name] = torch.from_numpy(keys).to(device)
        tensors = ClientTensors(
            states=_stack([work.states() for work in works]),
            draws=_stack([work.draws() for work in works]),
            inputs=[{} for _ in program.methods],
            num_steps=torch.tensor([work.num_steps for work in works], device=device),
            num_samples=torch.tensor([work.num_samples for work in works], device=device),
            weight=torch.tensor([work.weight for work in works], device=device, dtype=number_dtype()),
            masks=_stack([work.masks for work in works]),
        )
        with self.learner.layers():
            if (
                program.starters or program.masked or program.keeper >= 0
            ):  # they start from other parameters than the received ones
                started, inputs = torch.func.vmap(partial(_started, program), randomness="different")(buffers, tensors)
                tensors = tensors._replace(inputs=inputs, started=started)
                for name, value in started.items():
                    params[name].copy_(value)
        zeros = torch.zeros(num_clients, device=device, dtype=number_dtype())
        return Chunk(params, buffers, tensors, {"loss": zeros} | zeros_for(self.learner.logs, zeros))

    def train_chunk(self, assignment: Assignment, works: Sequence[ClientWork]) -> Result:
        trained = self.run(assignment, works, self.begin(assignment, self.padded(assignment, works)))
        return self.train_chunk(assignment, works) if trained is None else self.end(assignment, works, trained)

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
        stacked = dict(zip(map(id, self.model.params.values()), params.values(), strict=True))
        advance = stepper(optimizer_like(self.learner.optimizer, stacked), list(params.values()))
        alive_at = torch.arange(works[0].num_steps, device=totals["loss"].device)[:, None] < tensors.num_steps
        with self.learner.layers():
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

    @torch.no_grad()
    def end(self, assignment: Assignment, works: Sequence[ClientWork], chunk: Chunk) -> Result:
        """The result of trained clients."""
        program, (params, buffers, tensors, totals) = assignment.program, chunk
        tensors = with_states(tensors, _stack([work.residuals() for work in works]))
        manifests: list[Manifest] = []

        def finish(params: Params, buffers: Params, tensors: ClientTensors, measured: list[Slot]) -> Any:
            delta = {name: value - program.received.params[name] for name, value in params.items()}
            envelope, states, manifest = program.finish(delta, params, buffers, tensors, measured)
            manifests[:] = [manifest]
            return pytree.tree_map(torch.as_tensor, envelope), states

        measured: list[Slot] = [{} for _ in program.methods]
        with self.learner.layers():
            if program.measurers:
                measured = self._measure(assignment, works, params, buffers)
            envelope, states = torch.func.vmap(finish, randomness="different")(params, buffers, tensors, measured)
        return Result(works, envelope._replace(measured=means(totals, tensors.num_steps)), states, manifests[0])

    def _measure(self, assignment: Assignment, works: Sequence[ClientWork], params: Params, buffers: Params) -> list[Slot]:
        """The means of the methods' ``over_data`` over each client's own samples, padded to the largest client."""
        largest = max(work.num_samples for work in works)
        width = min(largest, max(1, assignment.rows_per_pass // len(works)))
        num_samples = torch.tensor([work.num_samples for work in works], device=assignment.reader.device)
        parts = []
        for first in range(0, largest, width):
            positions = np.arange(first, min(first + width, largest))
            mask = positions < np.array([work.num_samples for work in works])[:, None]
            indices = np.stack([work.own[np.where(valid, positions, 0)] for work, valid in zip(works, mask, strict=True)])
            inputs, targets = by_client(assignment.reader.train(indices.ravel(), None), indices.shape)
            weights = torch.from_numpy(mask).to(assignment.reader.device, torch.get_default_dtype())
            values = torch.func.vmap(
                lambda p, b, i, t, m: assignment.program.over_data(p, b, Batch(i, t, m)), randomness="different"
            )(params, buffers, inputs, targets, weights)
            share = weights.sum(1, dtype=number_dtype()) / num_samples
            parts.append(pytree.tree_map(lambda v, s=share: widened(v) * s.view(-1, *[1] * (v.ndim - 1)), values))
        return pytree.tree_map(lambda *values: sum(values), *parts)


def _started(program: Program, buffers: Params, tensors: ClientTensors) -> tuple[Params, list[Slot]]:
    """The parameters of one client that differ from the received ones before its first step, and the data that methods made."""
    _, tensors = program.start(program.received.params, buffers, tensors)
    return tensors.started, tensors.inputs


def _repeat(value: Tensor, times: int) -> Tensor:
    return value.detach().expand(times, *value.shape).clone()


def _stack(trees: list[Any]) -> Any:
    """The clients' trees as one tree of stacked tensors. Without tensors in the first, nothing is walked through."""
    if not pytree.tree_leaves(trees[0]):
        return trees[0]
    return pytree.tree_map(lambda *leaves: torch.stack(leaves), *trees)


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
