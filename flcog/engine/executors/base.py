"""Two ways to run the same clients: one at a time (`loop`, the readable one and the oracle), or many as one batched program (`vmap`)."""

import inspect
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from threading import Event
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from flcog.apply import ModelFunction, among_rounds, captured_logs
from flcog.core.precision import number_dtype
from flcog.core.randomness import fold, fold_each
from flcog.core.types import Batch, Params, Slot
from flcog.engine.batching import BLOCK_BYTES, Read, Work, batches, stacked_positions
from flcog.engine.executors.sgd import stepper
from flcog.engine.program import Local, Program, differentiate_eager, differentiate_pure
from flcog.hooks import Gradient


class Result(NamedTuple):
    """What some clients bring back. Tensors have a leading client axis."""

    works: Sequence[Work]
    delta: Params | None
    buffers: Params
    slots: list[Slot]
    """New slots, by method."""
    mean: list[dict[str, Any]]
    sum: list[dict[str, Any]]
    """Messages, by method."""
    losses: Tensor
    """Mean task loss over each client's local steps."""
    up_bytes: list[int]
    """Bytes each client sends, by method; the model itself comes first."""


class Stopped(Exception):
    """A client gave up, for another one failed or nobody waits for it any more."""


class Round(NamedTuple):
    """What an executor needs to know of a round beside the program."""

    program: Program
    works: Sequence[Work]
    read: Read
    bytes_per_sample: int
    seed: int
    round: int
    watch: Callable[[int, float], None] | None = None
    """Told each local step's task loss, by the loop."""
    stop: Event | None = None
    """Once set, the loop gives up at its next step."""


def seed_scratch(names: Sequence[str], round: Round, clients: Sequence[int]) -> dict[str, np.ndarray]:
    """Dropout keys, [clients] each: noise is a function of (seed, round, client, layer)."""
    return {name: fold_each(fold(round.seed, round.round, "dropout", name), clients).astype(np.int64) for name in names}


def dropout_keys(model: ModelFunction) -> list[str]:
    return [name for name in model.buffers if name.endswith("dropout_key")]


def longest_first(works: Sequence[Work]) -> list[Work]:
    """The order in which the loop runs clients: where several run side by side, none is left to the end to be waited for alone."""
    return sorted(works, key=lambda work: -work.num_steps)


def rows_per_pass(round: Round) -> int:
    """Rows read at a time where a client's data is only looked at."""
    return max(1, 4 * BLOCK_BYTES // max(1, round.bytes_per_sample))


def _with_axis(tree: Any) -> Any:
    """Values as tensors with a client axis of one."""
    return pytree.tree_map(lambda value: torch.as_tensor(value).unsqueeze(0), tree)


def _widened(value: Tensor) -> Tensor:
    """Where a mean of many is taken."""
    return value.to(torch.promote_types(value.dtype, number_dtype()))


class LoopExecutor:
    """One client at a time, on the module's real parameters and its real optimiser.

    Args:
        model: the client's model.
        optimizer: the module's own optimiser.
        seeds_torch: whether each client gets a seed of its own in torch's global stream, from which users' modules may draw.
    """

    name = "loop"
    clients_at_once = 1

    def __init__(self, model: ModelFunction, optimizer: torch.optim.Optimizer, seeds_torch: bool = True) -> None:
        self.model, self.optimizer, self._seeds_torch = model, optimizer, seeds_torch
        parts = (*model.params.values(), *model.buffers.values())
        self._storages = {tensor.untyped_storage().data_ptr() for tensor in parts}
        self._dropout_keys = dropout_keys(model)
        self._step, self._told_logs = 0, False

    def run(self, round: Round) -> Iterator[Result]:
        works = longest_first(round.works)
        keys = seed_scratch(self._dropout_keys, round, [work.client for work in works])
        for position, work in enumerate(works):
            try:
                with self._by_itself(round) if round.program.plain else nullcontext():
                    result = self._client(round, work, {name: int(values[position]) for name, values in keys.items()})
            except Exception as error:
                error.add_note(
                    f"in client {work.client}, round {round.round + 1}, local step {self._step + 1} of {work.num_steps}"
                )
                raise
            yield result

    @contextmanager
    def _by_itself(self, round: Round) -> Iterator[None]:
        """Where a module's own ``training_step`` finds what it may ask for, and what it logs goes."""
        module = self.model.module
        with among_rounds(module, round.round), captured_logs(module) as logged:
            yield
        if logged and not self._told_logs:
            self._told_logs = True
            warnings.warn(
                f"what {type(module).__name__}.training_step logs is not kept ({', '.join(logged)}): a round's train/loss is the mean "
                "of the losses that it returns",
                stacklevel=2,
            )

    @torch.no_grad()
    def _client(self, round: Round, work: Work, scratch: dict[str, int]) -> Result:
        program, params, buffers = round.program, self.model.params, self.model.buffers
        live, anchor = list(params.values()), [round.program.global_params[name] for name in params]
        torch._foreach_copy_(live, anchor)
        for name, buffer in program.global_buffers.items():
            buffers[name].copy_(buffer)
        for name, key in scratch.items():
            buffers[name].fill_(key)
        self.optimizer.state.clear()
        if self._seeds_torch:
            # Users' modules may draw from the global stream (nn.Dropout): make that repeatable too.
            torch.default_generator.manual_seed(fold(round.seed, round.round, work.client, "torch") >> 1)
        local = Local(work.slots, work.draws, [{}] * len(program.methods), work.num_steps, work.num_samples, work.weight)
        local = program.make_inputs(local, buffers)
        for name, value in program.start(program.global_params, buffers, local).items():
            if value is not program.global_params[name]:
                params[name].copy_(value)
        total, advance = torch.zeros((), device=live[0].device, dtype=number_dtype()), stepper(self.optimizer, live)
        for self._step, batch in enumerate(batches(work, round.read, round.bytes_per_sample)):
            if round.stop is not None and round.stop.is_set():
                raise Stopped
            if program.plain:
                program.local_step = self._step
            gradient = self._gradient(program, batch, local, self._step)
            total += gradient.loss
            if round.watch is not None:
                round.watch(self._step, float(gradient.loss))
            advance([gradient.values[name] for name in params])
            if program.followers:
                new, local = program.after_step(params, buffers, batch, local, self._step)
                for name, value in new.items():
                    if value is not params[name]:
                        params[name].copy_(value)
        now = {name: parameter.detach() for name, parameter in params.items()}
        measured = self._measure(round, work, now, local) if program.measurers else None
        change = dict(zip(params, torch._foreach_sub(live, anchor), strict=True))
        delta, slots, messages = program.finish(change, now, buffers, local, measured)
        result = Result(
            works=[work],
            delta=None if delta is None else {name: value.unsqueeze(0) for name, value in delta.items()},
            buffers={} if delta is None else {name: buffers[name].unsqueeze(0) for name in self.model.shared_buffers},
            slots=[_with_axis(slot) for slot in slots],
            mean=[_with_axis(message.mean) for message in messages],
            sum=[_with_axis(message.sum) for message in messages],
            losses=(total / work.num_steps).unsqueeze(0),
            up_bytes=program.up_bytes(delta, messages),
        )
        return result._replace(
            **{part: self._owned(getattr(result, part)) for part in ("delta", "buffers", "slots", "mean", "sum")}
        )

    def _measure(self, round: Round, work: Work, params: Params, local: Local) -> list[Slot]:
        """Means over the client's own samples of what methods measure."""
        parts = []
        for first in range(0, work.num_samples, rows_per_pass(round)):
            indices = work.own[first : first + rows_per_pass(round)]
            values = round.program.over_data(params, self.model.buffers, Batch(*round.read(indices, None)), local)
            share = len(indices) / work.num_samples
            parts.append(pytree.tree_map(lambda value, share=share: _widened(value) * share, values))
        return pytree.tree_map(lambda *values: sum(values), *parts)

    def _owned(self, tree: Any) -> Any:
        """Results outlive the client: copy what is still the module's own memory (a kept model, say)."""
        return pytree.tree_map(
            lambda t: t.clone() if isinstance(t, Tensor) and t.untyped_storage().data_ptr() in self._storages else t, tree
        )

    def _gradient(self, program: Program, batch: Batch, local: Local, step: int) -> Gradient:
        params, buffers = self.model.params, self.model.buffers
        contexts = program.contexts(local, buffers, step) if program.needs_context else []
        if program.wraps:
            # The gradient is taken at other parameters too, so every pass runs functionally, from this step's buffers.
            base = program.pure_gradient(differentiate_eager, buffers, contexts)
            result = program.gradient(base, params, batch, contexts)
            for name, buffer in result.buffers.items():
                buffers[name].copy_(buffer)
            return result

        def direct(params: Params, batch: Batch) -> Gradient:
            with torch.enable_grad():
                total, task = program.total_loss(program.apply(buffers, live=True), params, batch, contexts)
                values = torch.autograd.grad(total, list(params.values()), allow_unused=True, materialize_grads=True)
            return Gradient(dict(zip(params, values, strict=True)), buffers, task.detach())

        return program.gradient(direct, params, batch, contexts)


class VmapExecutor:
    """Many clients as one program: stacked parameters, one batched forward and backward, one optimiser step for all.

    An elementwise optimiser on stacked parameters *is* one optimiser per client. Clients of a chunk are those with the most similar
    numbers of steps; a client that has finished is frozen.

    Args:
        model: the client's model.
        optimizer: the module's own optimiser, whose settings are copied.
        clients_at_once: how many make one program.
    """

    name = "vmap"

    def __init__(self, model: ModelFunction, optimizer: torch.optim.Optimizer, clients_at_once: int) -> None:
        self.model, self.optimizer, self.clients_at_once = model, optimizer, clients_at_once
        self._dropout_keys = dropout_keys(model)

    def run(self, round: Round) -> Iterator[Result]:
        groups: dict[bytes, list[Work]] = {}
        for work in round.works:
            # BatchNorm would feel padding rows, so its clients are grouped by the sizes of their batches.
            groups.setdefault(work.sizes.tobytes() if self.model.mixes_rows else b"", []).append(work)
        for group in groups.values():
            group.sort(key=lambda work: -work.num_steps)
            for first in range(0, len(group), self.clients_at_once):
                chunk = group[first : first + self.clients_at_once]
                try:
                    yield self._chunk(round, chunk)
                except Exception as error:
                    clients = ", ".join(str(work.client) for work in chunk)
                    error.add_note(
                        f"in round {round.round + 1}, among clients {clients}; executor=loop names the client and the step"
                    )
                    raise

    @torch.no_grad()
    def _chunk(self, round: Round, works: list[Work]) -> Result:
        program, num_clients = round.program, len(works)
        device = next(iter(program.global_params.values())).device
        params = {name: _repeat(value, num_clients) for name, value in program.global_params.items()}
        buffers = {name: _repeat(self.model.buffers[name], num_clients) for name in self.model.buffers}
        buffers |= {name: _repeat(value, num_clients) for name, value in program.global_buffers.items()}
        for name, keys in seed_scratch(self._dropout_keys, round, [work.client for work in works]).items():
            buffers[name] = torch.from_numpy(keys).to(device)
        optimizer = optimizer_like(self.optimizer, dict(zip(map(id, self.model.params.values()), params.values(), strict=True)))
        local = Local(
            clients=_stack([work.slots for work in works]),
            draws=_stack([work.draws for work in works]),
            inputs=[{} for _ in program.methods],
            num_steps=torch.tensor([work.num_steps for work in works], device=device),
            num_samples=torch.tensor([work.num_samples for work in works], device=device),
            weight=torch.tensor([work.weight for work in works], device=device, dtype=number_dtype()),
        )
        if program.makers:
            local = torch.func.vmap(program.make_inputs, randomness="different")(local, buffers)
        if program.starters:
            starting = torch.func.vmap(lambda b, loc: program.start(program.global_params, b, loc))
            for name, value in starting(buffers, local).items():
                params[name].copy_(value)
        total, advance = torch.zeros(num_clients, device=device, dtype=number_dtype()), stepper(optimizer, list(params.values()))
        for step, inputs, targets, mask in self._batches(round, works, device):
            alive = torch.tensor([step < work.num_steps for work in works], device=device)
            ragged = works[-1].num_steps <= step
            gradient = _over_clients(program, step)(params, buffers, local, inputs, targets, mask)
            total += torch.where(alive, gradient.loss, 0.0)
            before = {name: value.clone() for name, value in params.items()} if ragged else params
            advance([gradient.values[name] for name in params])
            after, new_local = params, local
            if program.followers:
                after, new_local = torch.func.vmap(
                    lambda p, b, i, t, m, loc: program.after_step(p, b, Batch(i, t, m), loc, step),  # noqa: B023 - called at once
                    in_dims=(0, 0, 0, 0, None if mask is None else 0, 0),
                    randomness="different",
                )(params, gradient.buffers, inputs, targets, mask, local)
            if ragged:
                after, new_buffers, clients = (
                    pytree.tree_map(lambda new, old: _where(alive, new, old), new, old)  # noqa: B023 - called at once
                    for new, old in ((after, before), (gradient.buffers, buffers), (new_local.clients, local.clients))
                )
                buffers, local = new_buffers, local._replace(clients=clients)
            else:
                buffers, local = gradient.buffers, new_local
            for name, value in after.items():
                if value is not params[name]:
                    params[name].copy_(value)

        up_bytes: list[int] = []

        def finish(params: Params, buffers: Params, local: Local, measured: list[Slot]) -> Any:
            delta = {name: value - program.global_params[name] for name, value in params.items()}
            final, slots, messages = program.finish(delta, params, buffers, local, measured)
            up_bytes[:] = program.up_bytes(final, messages)
            values = [pytree.tree_map(torch.as_tensor, part) for m in messages for part in (dict(m.mean), dict(m.sum))]
            return final or {}, slots, values

        # Parameters are leaves with gradients attached; what is kept of a client must not drag those along.
        values = {name: value.detach() for name, value in params.items()}
        measured = self._measure(round, works, values, buffers, local) if program.measurers else [{} for _ in program.methods]
        delta, slots, messages = torch.func.vmap(finish, randomness="different")(values, buffers, local, measured)
        return Result(
            works=works,
            delta=delta or None,
            buffers={name: buffers[name] for name in self.model.shared_buffers} if delta else {},
            slots=slots,
            mean=messages[0::2],
            sum=messages[1::2],
            losses=total / local.num_steps,
            up_bytes=up_bytes,
        )

    def _measure(self, round: Round, works: list[Work], params: Params, buffers: Params, local: Local) -> list[Slot]:
        """Means over each client's own samples of what methods measure, padded to the largest client."""
        largest = max(work.num_samples for work in works)
        width = min(largest, max(1, rows_per_pass(round) // len(works)))
        parts = []
        for first in range(0, largest, width):
            rows = np.arange(first, min(first + width, largest))
            mask = rows < np.array([work.num_samples for work in works])[:, None]
            indices = np.stack([work.own[np.where(valid, rows, 0)] for work, valid in zip(works, mask, strict=True)])
            inputs, targets = (t.unflatten(0, indices.shape) for t in round.read(indices.ravel(), None))
            weights = torch.from_numpy(mask).to(inputs.device, torch.get_default_dtype())
            values = torch.func.vmap(
                lambda p, b, i, t, m, loc: round.program.over_data(p, b, Batch(i, t, m), loc), randomness="different"
            )(params, buffers, inputs, targets, weights, local)
            share = weights.sum(1, dtype=number_dtype()) / local.num_samples
            parts.append(pytree.tree_map(lambda v, s=share: _widened(v) * s.view(-1, *[1] * (v.ndim - 1)), values))
        return pytree.tree_map(lambda *values: sum(values), *parts)

    def _batches(
        self, round: Round, works: list[Work], device: torch.device
    ) -> Iterator[tuple[int, Tensor, Tensor, Tensor | None]]:
        """Every step's stacked batches, [K, B, ...], reading several steps at a time."""
        num_steps, width = works[0].num_steps, max(int(work.sizes.max()) for work in works)
        per_block = max(1, BLOCK_BYTES // max(1, round.bytes_per_sample * width * len(works)))
        lengths = np.array([len(work.order) for work in works])
        order = np.concatenate([work.order for work in works])
        keys = np.concatenate([work.keys for work in works if work.keys is not None] or [np.zeros(0, np.uint64)])
        for first in range(0, num_steps, per_block):
            last = min(num_steps, first + per_block)
            positions, mask = stacked_positions(works, first, last)
            flat = (positions + (np.cumsum(lengths) - lengths)[:, None, None]).ravel()
            inputs, targets = round.read(order[flat], keys[flat] if len(keys) else None)
            inputs, targets = (t.unflatten(0, positions.shape) for t in (inputs, targets))
            masks = None if mask is None else torch.from_numpy(mask).to(device)
            for s in range(last - first):
                # Cut to the step's largest batch: where all clients' batches are shorter, BatchNorm must not feel padding.
                rows = width if mask is None else int(mask[:, s].sum(1).max())
                full = mask is None or mask[:, s, :rows].all()
                counts = None if full or masks is None else masks[:, s, :rows].to(torch.get_default_dtype())
                yield first + s, inputs[:, s, :rows], targets[:, s, :rows], counts


def _over_clients(program: Program, step: int) -> Any:
    """One local step's gradient, for stacked clients."""

    def gradient(params: Params, buffers: Params, local: Local, inputs: Tensor, targets: Tensor, mask: Tensor | None) -> Gradient:
        contexts = program.contexts(local, buffers, step) if program.needs_context else []
        base = program.pure_gradient(differentiate_pure, buffers, contexts)
        return program.gradient(base, params, Batch(inputs, targets, mask), contexts)

    def mapped(params: Params, buffers: Params, local: Local, inputs: Tensor, targets: Tensor, mask: Tensor | None) -> Gradient:
        in_dims = (0, 0, 0, 0, 0, None if mask is None else 0)
        return torch.func.vmap(gradient, in_dims=in_dims, randomness="different")(params, buffers, local, inputs, targets, mask)

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
