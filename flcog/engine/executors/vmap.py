"""Many clients as one batched program: stacked parameters, one forward and backward pass, one optimiser step for all."""

import inspect
import warnings
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from flcog.apply import ModelFunction
from flcog.core.precision import number_dtype
from flcog.core.trees import Tree
from flcog.core.types import Batch, Params, Slot
from flcog.engine.batching import ClientWork
from flcog.engine.executors.base import Assignment, Result, dropout_keys, rows_per_pass, seed_scratch, set_rates
from flcog.engine.executors.loop import _widened
from flcog.engine.executors.own_steps import OwnSteps
from flcog.engine.executors.patches import ConvolutionsAsPatches
from flcog.engine.executors.sgd import stepper
from flcog.engine.executors.stacking import announce_chunk, by_client, stacked_batches
from flcog.engine.program import ClientTensors, Program, differentiate_pure, left_out
from flcog.hooks import Gradient


class VmapExecutor:
    """Many clients as one program: stacked parameters, one batched forward and backward, one optimiser step for all.

    An elementwise optimiser on stacked parameters *is* one optimiser per client. Clients of a chunk are those with the most similar
    numbers of steps; a client that has finished is frozen.

    Args:
        model: the client's model.
        optimizer: the module's own optimiser, whose settings are copied.
        clients_at_once: how many make one program.
        patches: whether convolutions are products of matrices.
    """

    def __init__(
        self, model: ModelFunction, optimizer: torch.optim.Optimizer, clients_at_once: int, patches: bool = False
    ) -> None:
        self.name = "vmap-patches" if patches else "vmap"
        self._convolutions: Callable[[], AbstractContextManager[Any]] = ConvolutionsAsPatches if patches else nullcontext
        self.model, self.optimizer, self.clients_at_once = model, optimizer, clients_at_once
        self._dropout_keys, self._own_steps, self._halved = dropout_keys(model), OwnSteps(), False

    def run(self, assignment: Assignment) -> Generator[Result, None, None]:
        set_rates(self.optimizer, assignment.rates)
        groups: dict[bytes, list[ClientWork]] = {}
        for work in assignment.works:
            # BatchNorm would feel padding rows, and so would a training_step of one's own: clients are grouped by the sizes of batches.
            alike = self.model.mixes_rows or self.model.trains_itself
            groups.setdefault(work.sizes.tobytes() if alike else b"", []).append(work)
        for group in groups.values():
            group.sort(key=lambda work: -work.num_steps)
            done = 0
            while done < len(group):
                chunk = group[done : done + self.clients_at_once]
                announce_chunk(group[done + len(chunk) :][: len(chunk)], assignment.reader)
                result = self._attempt(assignment, chunk)
                if result is None:
                    self._halve(len(chunk))
                else:
                    done += len(chunk)
                    yield result

    def _attempt(self, assignment: Assignment, chunk: list[ClientWork]) -> Result | None:
        """A chunk's results; None where memory ran out, and fewer clients at a time may do."""
        try:
            with self._own_steps.around(self.model, assignment.round), self._convolutions():
                return self._chunk(assignment, chunk)
        except Exception as error:
            if isinstance(error, torch.OutOfMemoryError) and len(chunk) > 1 and not self._halved:
                return None  # not from here: until the error is gone, it holds what the chunk has allocated
            clients = ", ".join(str(work.client) for work in chunk)
            error.add_note(
                f"in round {assignment.round + 1}, among clients {clients}; executor=loop names the client and the step"
            )
            raise

    def _halve(self, too_many: int) -> None:
        """Go on with half as many clients at a time. Once: what still does not fit then is another's memory, or a single client."""
        self.clients_at_once, self._halved = too_many // 2, True
        warnings.warn(
            f"executor={self.name}: {too_many} clients at a time do not fit into memory, {self.clients_at_once} are tried from here on; "
            f"trainer.chunk_size={self.clients_at_once} says so from the start",
            stacklevel=2,
        )
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    @torch.no_grad()
    def _chunk(self, assignment: Assignment, works: list[ClientWork]) -> Result:
        program, num_clients = assignment.program, len(works)
        device = next(iter(program.global_params.values())).device
        params = {name: _repeat(value, num_clients) for name, value in program.global_params.items()}
        buffers = {name: _repeat(self.model.buffers[name], num_clients) for name in self.model.buffers}
        buffers |= {name: _repeat(value, num_clients) for name, value in program.global_buffers.items()}
        for name, keys in seed_scratch(self._dropout_keys, assignment, [work.client for work in works]).items():
            buffers[name] = torch.from_numpy(keys).to(device)
        optimizer = optimizer_like(self.optimizer, dict(zip(map(id, self.model.params.values()), params.values(), strict=True)))
        tensors = ClientTensors(
            clients=_stack([work.slots for work in works]),
            draws=_stack([work.draws for work in works]),
            inputs=[{} for _ in program.methods],
            num_steps=torch.tensor([work.num_steps for work in works], device=device),
            num_samples=torch.tensor([work.num_samples for work in works], device=device),
            weight=torch.tensor([work.weight for work in works], device=device, dtype=number_dtype()),
        )
        if program.makers:
            tensors = torch.func.vmap(program.make_inputs, randomness="different")(tensors, buffers)
        if program.starters:
            starting = torch.func.vmap(lambda b, tensors: program.start(program.global_params, b, tensors))
            for name, value in starting(buffers, tensors).items():
                params[name].copy_(value)
        total, advance = torch.zeros(num_clients, device=device, dtype=number_dtype()), stepper(optimizer, list(params.values()))
        alive_at = torch.arange(works[0].num_steps, device=device)[:, None] < tensors.num_steps
        for step, (inputs, targets, mask) in enumerate(stacked_batches(works, assignment.reader)):
            alive = alive_at[step]
            ragged = works[-1].num_steps <= step
            program.local_step = step
            gradient = _over_clients(program, step)(params, buffers, tensors, inputs, targets, mask)
            total += torch.where(alive, gradient.loss, 0.0)
            before = {name: value.clone() for name, value in params.items()} if ragged else params
            advance([gradient.values[name] for name in params])
            after, new_tensors = params, tensors
            if program.followers:
                after, new_tensors = torch.func.vmap(
                    lambda p, b, i, t, m, tensors: program.after_step(p, b, Batch(i, t, m), tensors, step),  # noqa: B023 - called at once
                    in_dims=(0, 0, 0, 0, None if mask is None else 0, 0),
                    randomness="different",
                )(params, gradient.buffers, inputs, targets, mask, tensors)
            if ragged:
                after, new_buffers, clients = (
                    pytree.tree_map(lambda new, old: _where(alive, new, old), new, old)  # noqa: B023 - called at once
                    for new, old in ((after, before), (gradient.buffers, buffers), (new_tensors.clients, tensors.clients))
                )
                buffers, tensors = new_buffers, tensors._replace(clients=clients)
            else:
                buffers, tensors = gradient.buffers, new_tensors
            for name, value in after.items():
                if value is not params[name]:
                    params[name].copy_(value)

        up_bytes: list[int] = []

        def finish(params: Params, buffers: Params, tensors: ClientTensors, measured: list[Slot]) -> Any:
            delta = {name: value - program.global_params[name] for name, value in params.items()}
            final, slots, messages = program.finish(delta, params, buffers, tensors, measured)
            up_bytes[:] = program.up_bytes(final, messages)
            values = [pytree.tree_map(torch.as_tensor, part) for m in messages for part in (dict(m.mean), dict(m.sum))]
            return final or {}, slots, values, torch.as_tensor(left_out(messages))

        # Parameters are leaves with gradients attached; what is kept of a client must not drag those along.
        values = {name: value.detach() for name, value in params.items()}
        measured = (
            self._measure(assignment, works, values, buffers, tensors) if program.measurers else [{} for _ in program.methods]
        )
        delta, slots, messages, unsent = torch.func.vmap(finish, randomness="different")(values, buffers, tensors, measured)
        return Result(
            works=works,
            delta=delta or None,
            buffers={name: buffers[name] for name in self.model.shared_buffers} if delta else {},
            slots=slots,
            mean=messages[0::2],
            sum=messages[1::2],
            losses=total / tensors.num_steps,
            up_bytes=up_bytes,
            left_out=unsent,
        )

    def _measure(
        self, assignment: Assignment, works: list[ClientWork], params: Params, buffers: Params, tensors: ClientTensors
    ) -> list[Slot]:
        """Means over each client's own samples of what methods measure, padded to the largest client."""
        largest = max(work.num_samples for work in works)
        width = min(largest, max(1, rows_per_pass(assignment) // len(works)))
        parts = []
        for first in range(0, largest, width):
            positions = np.arange(first, min(first + width, largest))
            mask = positions < np.array([work.num_samples for work in works])[:, None]
            indices = np.stack([work.own[np.where(valid, positions, 0)] for work, valid in zip(works, mask, strict=True)])
            inputs, targets = by_client(assignment.reader.train(indices.ravel(), None), indices.shape)
            weights = torch.from_numpy(mask).to(assignment.reader.device, torch.get_default_dtype())
            values = torch.func.vmap(
                lambda p, b, i, t, m, tensors: assignment.program.over_data(p, b, Batch(i, t, m), tensors), randomness="different"
            )(params, buffers, inputs, targets, weights, tensors)
            share = weights.sum(1, dtype=number_dtype()) / tensors.num_samples
            parts.append(pytree.tree_map(lambda v, s=share: _widened(v) * s.view(-1, *[1] * (v.ndim - 1)), values))
        return pytree.tree_map(lambda *values: sum(values), *parts)


def _over_clients(program: Program, step: int) -> Any:
    """One local step's gradient, for stacked clients."""

    def gradient(
        params: Params, buffers: Params, tensors: ClientTensors, inputs: Tree, targets: Tree, mask: Tensor | None
    ) -> Gradient:
        contexts = program.contexts(tensors, buffers, step) if program.needs_context else []
        base = program.pure_gradient(differentiate_pure, buffers, contexts)
        return program.gradient(base, params, Batch(inputs, targets, mask), contexts)

    def mapped(
        params: Params, buffers: Params, tensors: ClientTensors, inputs: Tree, targets: Tree, mask: Tensor | None
    ) -> Gradient:
        in_dims = (0, 0, 0, 0, 0, None if mask is None else 0)
        return torch.func.vmap(gradient, in_dims=in_dims, randomness="different")(params, buffers, tensors, inputs, targets, mask)

    return mapped


def _repeat(value: Tensor, times: int) -> Tensor:
    return value.detach().expand(times, *value.shape).clone()


def _stack(trees: list[Any]) -> Any:
    return pytree.tree_map(lambda *leaves: torch.stack(leaves), *trees)


def _where(alive: Tensor, new: Tensor, old: Tensor) -> Tensor:
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
