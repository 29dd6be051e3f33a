"""One client's round as pure functions: combines the hooks of all methods, the same way for every executor."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from flcog.apply import Apply, ModelFunction, apply_of
from flcog.core.types import Batch, Params, Slot
from flcog.method import Context, Gradient, GradientFunction, Method, Optimisation, Upload

Differentiate = Callable[[Callable[[Params], tuple[Tensor, tuple[Params, Tensor]]], Params], tuple[Params, tuple[Params, Tensor]]]
"""``differentiate(f, params) -> (gradient of f's first result, f's second result)``."""


class ClientTensors(NamedTuple):
    """What belongs to one client in one round; under vmap every tensor has a leading client axis."""

    clients: list[Slot]
    draws: list[Slot]
    inputs: list[Slot]
    num_steps: Tensor | int
    num_samples: Tensor | int
    weight: Tensor | float


@dataclass
class Program:
    """One round's client side: the active methods around the model, with everything that is the same for all clients.

    Args:
        model: the client's model as a function.
        methods: the methods active this round.
        broadcasts: what each method sends every client of the cohort.
        global_params, global_buffers: the broadcast model.
        optimisation: the local optimiser's settings this round.
    """

    model: ModelFunction
    methods: Sequence[Method]
    broadcasts: Sequence[Slot]
    global_params: Params
    global_buffers: Params
    optimisation: Optimisation

    def __post_init__(self) -> None:
        self.starters, self.losses, self.wraps, self.corrections, self.followers, self.makers, self.measurers = (
            [(i, method) for i, method in enumerate(self.methods) if method.overrides(hook)]
            for hook in ("start", "loss", "wrap_gradient", "correct_gradient", "after_step", "client_inputs", "over_data")
        )
        self.local_step = 0
        """The client's local step, for a module with a ``training_step`` of its own; no other reads it."""
        self.kept = [method.kept_parameters for method in self.methods if method.kept_parameters]
        self.needs_context = bool(self.losses or self.wraps or self.corrections or self.followers)

    def apply(self, buffers: Params, live: bool = False) -> Apply:
        return apply_of(self.model, buffers, live, self.local_step)

    def contexts(
        self, tensors: ClientTensors, buffers: Params, step: int | Tensor, measured: Sequence[Slot] | None = None
    ) -> list[Context]:
        """Each method's view of a client."""
        return [
            Context(
                self.global_params,
                self.global_buffers,
                buffers,
                server,
                client,
                draws,
                inputs,
                seen,
                step,
                tensors.num_steps,
                tensors.num_samples,
                tensors.weight,
                self.optimisation,
            )
            for server, client, draws, inputs, seen in zip(
                self.broadcasts, tensors.clients, tensors.draws, tensors.inputs, measured or [{}] * len(self.methods), strict=True
            )
        ]

    def make_inputs(self, tensors: ClientTensors, buffers: Params) -> ClientTensors:
        """Data that methods make for the client before it trains."""
        if not self.makers:
            return tensors
        contexts, inputs = self.contexts(tensors, buffers, 0), list(tensors.inputs)
        for i, method in self.makers:
            inputs[i] = method.client_inputs(self.apply(buffers), contexts[i])
        return tensors._replace(inputs=inputs)

    def start(self, params: Params, buffers: Params, tensors: ClientTensors) -> Params:
        """The parameters from which the client's first step departs."""
        if self.starters:
            contexts = self.contexts(tensors, buffers, 0)
            for i, method in self.starters:
                params = method.start(params, contexts[i])
        return params

    def total_loss(self, apply: Apply, params: Params, batch: Batch, contexts: list[Context]) -> tuple[Tensor, Tensor]:
        """The task loss with every method's term, and the task loss alone."""
        task_loss = apply.loss(params, batch)
        total = task_loss
        for i, method in self.losses:
            total = total + method.loss(apply, params, batch, task_loss, contexts[i])
        return total, task_loss

    def gradient(self, base: GradientFunction, params: Params, batch: Batch, contexts: list[Context]) -> Gradient:
        """The gradient that the optimiser sees: ``base`` inside every wrapper, then every correction."""
        function = base
        for i, method in self.wraps:
            function = method.wrap_gradient(function, contexts[i])
        result = function(params, batch)
        values = result.values
        for i, method in self.corrections:
            values = method.correct_gradient(values, params, contexts[i])
        return result._replace(values=values)

    def pure_gradient(self, differentiate: Differentiate, buffers: Params, contexts: list[Context]) -> GradientFunction:
        """The gradient of the summed loss as a pure function; every call starts from the same ``buffers``."""

        def gradient(params: Params, batch: Batch) -> Gradient:
            def loss(params: Params) -> tuple[Tensor, tuple[Params, Tensor]]:
                # BatchNorm's statistics are updated in place, so each pass gets its own.
                apply = self.apply({name: buffer.clone() for name, buffer in buffers.items()})
                total, task_loss = self.total_loss(apply, params, batch, contexts)
                return total, (apply.buffers, task_loss.detach())

            values, (new_buffers, task_loss) = differentiate(loss, params)
            return Gradient(values, new_buffers, task_loss)

        return gradient

    def after_step(
        self, params: Params, buffers: Params, batch: Batch, tensors: ClientTensors, step: int | Tensor
    ) -> tuple[Params, ClientTensors]:
        """The chain of what follows an optimiser step."""
        if not self.followers:
            return params, tensors
        contexts, clients = self.contexts(tensors, buffers, step), list(tensors.clients)
        for i, method in self.followers:
            params, clients[i] = method.after_step(self.apply(buffers), params, batch, contexts[i])
        return params, tensors._replace(clients=clients)

    def over_data(self, params: Params, buffers: Params, batch: Batch, tensors: ClientTensors) -> list[Slot]:
        """What methods measure on a batch of the client's own data, once it has trained."""
        contexts = self.contexts(tensors, buffers, tensors.num_steps)
        values: list[Slot] = [{} for _ in self.methods]
        for i, method in self.measurers:
            values[i] = method.over_data(self.apply(buffers), params, batch, contexts[i])
        return values

    def finish(
        self, delta: Params, params: Params, buffers: Params, tensors: ClientTensors, measured: Sequence[Slot] | None = None
    ) -> tuple[Params | None, list[Slot], list[Upload]]:
        """The chain of what leaves the client: its delta, its new slots, and each method's upload."""
        contexts = self.contexts(tensors, buffers, tensors.num_steps, measured)
        clients, uploads, sends_weights = list(tensors.clients), [], True
        for i, method in enumerate(self.methods):
            if not method.overrides("finish_client"):
                uploads.append(Upload(None, clients[i]))
                continue
            upload = method.finish_client(delta, params, contexts[i])
            if upload.delta is None:
                sends_weights = False
            else:
                delta = upload.delta
            clients[i] = upload.client
            uploads.append(upload)
        if self.kept:
            delta = {name: value for name, value in delta.items() if not any(re.search(kept, name) for kept in self.kept)}
        return (delta if sends_weights else None), clients, uploads

    def up_bytes(self, delta: Params | None, uploads: Sequence[Upload]) -> list[int]:
        """Bytes a client sends: the model first, then each method's messages. A tensor in several messages is counted once."""
        model = [] if delta is None else [*delta.values(), *(self.global_buffers[name] for name in self.model.shared_buffers)]
        seen, counts = {id(tensor) for tensor in model}, [sum(map(num_bytes, model))]
        for upload in uploads:
            tensors = [t for t in pytree.tree_leaves((dict(upload.mean), dict(upload.sum))) if id(t) not in seen]
            seen.update(map(id, tensors))
            counts.append(sum(map(num_bytes, tensors)))
        return counts


def left_out(uploads: Sequence[Upload]) -> Tensor | float:
    """Bytes of the model that this client neither received nor sends."""
    return sum(upload.left_out for upload in uploads)


def num_bytes(value: Tensor | float) -> int:
    """The bytes of a tensor, or of one number sent as a float32, as it is sent."""
    return value.numel() * value.element_size() if isinstance(value, Tensor) else 4


def differentiate_pure(
    function: Callable[[Params], tuple[Tensor, tuple[Params, Tensor]]], params: Params
) -> tuple[Params, tuple[Params, Tensor]]:
    """By torch.func, which vmap can transform."""
    return torch.func.grad(function, has_aux=True)(params)


def differentiate_eager(
    function: Callable[[Params], tuple[Tensor, tuple[Params, Tensor]]], params: Params
) -> tuple[Params, tuple[Params, Tensor]]:
    """By plain autograd, for the loop: a traceback that reads as the user's code does."""
    with torch.enable_grad():
        leaves = {name: value.detach().requires_grad_() for name, value in params.items()}
        loss, rest = function(leaves)
        values = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True, materialize_grads=True)
    return dict(zip(leaves, values, strict=True)), rest
