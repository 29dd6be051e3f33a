"""Many clients as one batched program: stacked parameters, one forward and backward pass, one optimiser step for all."""

import warnings
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from flcog.apply import ModelFunction
from flcog.client.executor import (
    Assignment,
    Result,
    dropout_keys,
    longest_first,
    rows_per_pass,
    seed_scratch,
    set_rates,
    torch_seed,
)
from flcog.client.program import ClientTensors, Program
from flcog.client.work import ClientWork
from flcog.core.precision import number_dtype
from flcog.core.randomness import seed_streams
from flcog.core.types import Batch, Params, Slot
from flcog.execute.batched_layers import batched_layers
from flcog.execute.loop import _widened
from flcog.execute.own_steps import OwnSteps
from flcog.execute.stacking import by_client
from flcog.execute.steps import Chunk, PlainSteps, Steps
from flcog.settings import Compile
from flcog.wire.envelope import Manifest


class VmapExecutor:
    """Many clients as one program: stacked parameters, one batched forward and backward, one optimiser step for all.

    An elementwise optimiser on stacked parameters *is* one optimiser per client. Clients of a chunk are those with the most similar
    numbers of steps; a client that has finished is frozen.

    Args:
        model: the client's model.
        optimizer: the module's own optimiser, whose settings are copied.
        clients_at_once: how many make one program.
        patches: whether convolutions are products of matrices.
        steps: how a chunk's local steps are run.
        seeds_torch: whether each chunk seeds torch's global streams by its first client, as users' modules may draw from them.
    """

    def __init__(
        self,
        model: ModelFunction,
        optimizer: torch.optim.Optimizer,
        clients_at_once: int,
        patches: bool = False,
        steps: Steps | None = None,
        seeds_torch: bool = True,
    ) -> None:
        self.name = "vmap-patches" if patches else "vmap"
        self._layers = batched_layers(model, patches)
        self.model, self.optimizer, self.clients_at_once = model, optimizer, clients_at_once
        self._steps = steps or PlainSteps(model, optimizer, self._layers)
        self.own_steps, self._dropout_keys, self._backed_off = OwnSteps(), dropout_keys(model), False
        self._seeds_torch = seeds_torch

    @property
    def compiled(self) -> Compile:
        return self._steps.compiled

    def run(self, assignment: Assignment) -> Generator[Result, None, None]:
        set_rates(self.optimizer, assignment.rates)
        for group in self._groups(assignment.works):
            done = 0
            while done < len(group):
                chunk = group[done : done + self.clients_at_once]
                self._steps.announce(assignment, group[done + len(chunk) :][: len(chunk)])
                result = self._attempt(assignment, chunk)
                if result is None:
                    self._go_on_with(len(chunk) // 2, len(chunk))
                else:
                    done += len(chunk)
                    yield result

    def _groups(self, works: Sequence[ClientWork]) -> list[list[ClientWork]]:
        """Clients that may be stacked, those with the most steps first. Where padding would be felt, their batches have the same sizes."""
        groups: dict[bytes, list[ClientWork]] = {}
        for work in works:
            groups.setdefault(work.sizes.tobytes() if self.model.feels_padding else b"", []).append(work)
        return [longest_first(group) for group in groups.values()]

    def _attempt(self, assignment: Assignment, chunk: list[ClientWork]) -> Result | None:
        """A chunk's results; None where memory ran out, and fewer clients at a time may do."""
        try:
            with self._naming(assignment, chunk):
                return self._chunk(assignment, chunk)
        except torch.OutOfMemoryError:
            if len(chunk) == 1 or self._backed_off:
                raise
            return None  # not from here: until the error is gone, it holds what the chunk has allocated

    @contextmanager
    def _naming(self, assignment: Assignment, works: list[ClientWork]) -> Iterator[None]:
        """Errors inside say where they happened."""
        try:
            with self.own_steps.around(self.model, assignment.round):
                yield
        except Exception as error:
            error.add_note(self._where(assignment, works))
            raise

    def _where(self, assignment: Assignment, works: list[ClientWork]) -> str:
        """Where an error happened."""
        clients = ", ".join(str(work.client) for work in works)
        return f"in round {assignment.round + 1}, among clients {clients}; executor=loop names the client and the step"

    def _go_on_with(self, clients: int, too_many: int) -> None:
        """Go on with fewer clients at a time. Once: what still does not fit then is another's memory, or a single client."""
        self.clients_at_once, self._backed_off = clients, True
        warnings.warn(
            f"executor={self.name}: {too_many} clients at a time do not fit into memory, {self.clients_at_once} are tried from here on; "
            f"trainer.chunk_size={self.clients_at_once} says so from the start",
            stacklevel=2,
        )
        self._make_room(clients)
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def _make_room(self, clients: int) -> None:
        """Let go of what was made for more clients."""
        self._steps.fewer(clients)

    @torch.no_grad()
    def _begun(self, assignment: Assignment, works: list[ClientWork]) -> Chunk:
        """Clients before their first step."""
        program, num_clients = assignment.program, len(works)
        device = next(iter(program.global_params.values())).device
        if self._seeds_torch:
            seed_streams(device, torch_seed(assignment, works[0].client))
        params = {name: _repeat(value, num_clients) for name, value in program.global_params.items()}
        buffers = {name: _repeat(self.model.buffers[name], num_clients) for name in self.model.buffers}
        buffers |= {name: _repeat(value, num_clients) for name, value in program.global_buffers.items()}
        for name, keys in seed_scratch(self._dropout_keys, assignment, [work.client for work in works]).items():
            buffers[name] = torch.from_numpy(keys).to(device)
        tensors = ClientTensors(
            clients=_stack([work.slots for work in works]),
            draws=_stack([work.draws for work in works]),
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
        return Chunk(params, buffers, tensors, torch.zeros(num_clients, device=device, dtype=number_dtype()))

    def _chunk(self, assignment: Assignment, works: list[ClientWork]) -> Result:
        stacked = self._steps.padded(assignment, works)
        trained = self._steps.run(assignment, works, self._begun(assignment, stacked))
        return self._chunk(assignment, works) if trained is None else self._ended(assignment, works, trained)

    @torch.no_grad()
    def _ended(self, assignment: Assignment, works: list[ClientWork], chunk: Chunk) -> Result:
        """What clients that have trained hand over."""
        program, (params, buffers, tensors, total) = assignment.program, chunk
        manifests: list[Manifest] = []

        def finish(params: Params, buffers: Params, tensors: ClientTensors, measured: list[Slot]) -> Any:
            delta = {name: value - program.global_params[name] for name, value in params.items()}
            envelope, states, manifest = program.finish(delta, params, buffers, tensors, measured)
            manifests[:] = [manifest]
            return pytree.tree_map(torch.as_tensor, envelope), states

        measured: list[Slot] = [{} for _ in program.methods]
        with self._layers():
            if program.measurers:
                measured = self._measure(assignment, works, params, buffers)
            envelope, states = torch.func.vmap(finish, randomness="different")(params, buffers, tensors, measured)
        return Result(works, envelope._replace(measured={"loss": total / tensors.num_steps}), states, manifests[0])

    def _measure(self, assignment: Assignment, works: list[ClientWork], params: Params, buffers: Params) -> list[Slot]:
        """Means over each client's own samples of what methods measure, padded to the largest client."""
        largest = max(work.num_samples for work in works)
        width = min(largest, max(1, rows_per_pass(assignment) // len(works)))
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
            parts.append(pytree.tree_map(lambda v, s=share: _widened(v) * s.view(-1, *[1] * (v.ndim - 1)), values))
        return pytree.tree_map(lambda *values: sum(values), *parts)


def _started(program: Program, buffers: Params, tensors: ClientTensors) -> tuple[Params, list[Slot]]:
    """The parameters of one client that differ from the received ones before its first step, and the data that methods made."""
    params, tensors = program.start(program.global_params, buffers, tensors)
    return {name: value for name, value in params.items() if value is not program.global_params[name]}, tensors.inputs


def _repeat(value: Tensor, times: int) -> Tensor:
    return value.detach().expand(times, *value.shape).clone()


def _stack(trees: list[Any]) -> Any:
    return pytree.tree_map(lambda *leaves: torch.stack(leaves), *trees)
