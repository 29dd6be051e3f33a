"""Trains stacked clients: one batched forward and backward pass, and one optimiser step for all."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from flcog.client.executor import Assignment, Result, longest_first
from flcog.client.program import ClientTensors, Program, with_states
from flcog.client.work import ClientWork
from flcog.core.global_streams import seed_streams
from flcog.core.precision import number_dtype
from flcog.core.trees import form, unlike_keys
from flcog.core.types import Batch, Params, Slot
from flcog.execute.one_client import widened
from flcog.execute.plain_steps import Chunk, PlainSteps
from flcog.execute.stacking import by_client
from flcog.execute.trainer import ClientTrainer, Learner, add_note, own_steps
from flcog.functional.own_steps import means, zeros_for
from flcog.method import Method
from flcog.settings import Compile
from flcog.wire.envelope import Manifest


class StackedClients(ClientTrainer):
    """Trains stacked clients: one batched forward and backward pass, and one optimiser step for all.

    An elementwise optimiser on stacked parameters equals one optimiser per client. A client that has finished is frozen.
    """

    def __init__(self, learner: Learner, steps: PlainSteps) -> None:
        super().__init__(learner)
        self.steps, self._layers = steps, learner.layers

    @property
    def compiled(self) -> Compile:
        return self.steps.compiled

    def groups(self, works: Sequence[ClientWork]) -> list[list[ClientWork]]:
        """Groups of clients that may be stacked. Where a model is sensitive to padding, the batches of a group have the same sizes."""
        groups: dict[bytes, list[ClientWork]] = {}
        for work in works:
            groups.setdefault(work.sizes.tobytes() if self.model.feels_padding else b"", []).append(work)
        return [longest_first(group) for group in groups.values()]

    def announce(self, assignment: Assignment, works: Sequence[ClientWork]) -> None:
        self.steps.announce(assignment, works)

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
            hint = "compile=false names the local step" if names_step else "executor=loop names the client and the local step"
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
            states=_stack([work.states() for work in works], program.methods),
            draws=_stack([work.draws() for work in works], program.methods),
            inputs=[{} for _ in program.methods],
            num_steps=torch.tensor([work.num_steps for work in works], device=device),
            num_samples=torch.tensor([work.num_samples for work in works], device=device),
            weight=torch.tensor([work.weight for work in works], device=device, dtype=number_dtype()),
            masks=_stack([work.masks for work in works]),
        )
        with self._layers():
            if program.starters or program.masked:
                started, inputs = torch.func.vmap(partial(_started, program), randomness="different")(buffers, tensors)
                tensors = tensors._replace(inputs=inputs)
                for name, value in started.items():
                    params[name].copy_(value)
        zeros = torch.zeros(num_clients, device=device, dtype=number_dtype())
        return Chunk(params, buffers, tensors, {"loss": zeros} | zeros_for(self.learner.logs, zeros))

    def train_chunk(self, assignment: Assignment, works: Sequence[ClientWork]) -> Result:
        stacked = self.steps.padded(assignment, works)
        trained = self.steps.run(assignment, works, self.begin(assignment, stacked))
        return self.train_chunk(assignment, works) if trained is None else self.end(assignment, works, trained)

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
        with self._layers():
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
    params, tensors = program.start(program.received.params, buffers, tensors)
    return {name: value for name, value in params.items() if value is not program.received.params[name]}, tensors.inputs


def _repeat(value: Tensor, times: int) -> Tensor:
    return value.detach().expand(times, *value.shape).clone()


def _stack(trees: list[Any], methods: Sequence[Method] = ()) -> Any:
    """The clients' trees as one tree of stacked tensors. Without tensors in the first, nothing is walked through."""
    for method, first, *others in zip(methods, *trees, strict=False):
        if (odd := next((slot for slot in others if unlike_keys(first, slot)), None)) is not None:
            raise ValueError(
                f"{method.name}: the states (or draws) of all clients must have the same structure; got {form(first)} and {form(odd)}: "
                "let init_client return every key that finish_client and after_step return"
            )
    if not pytree.tree_leaves(trees[0]):
        return trees[0]
    return pytree.tree_map(lambda *leaves: torch.stack(leaves), *trees)
