"""One client's round as pure functions: combines the hooks of all methods, the same way for every executor."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from flcog.apply import Apply, ModelFunction, apply_of
from flcog.core.types import Batch, Params, Slot
from flcog.method import Context, Gradient, GradientFunction, Method, Optimisation, Stage, Upload
from flcog.method.stage import ORDER
from flcog.wire.envelope import Envelope, Manifest, fields_of, sizes_of

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
    masks: Params = {}
    """The parts of parameters that the client has, where these are not whole."""


@dataclass
class Program:
    """One round's client side: the active methods around the model, with everything that is the same for all clients.

    Args:
        model: the client's model as a function.
        methods: the methods active this round.
        broadcasts: what each method sends every client of the cohort.
        global_params, global_buffers: the broadcast model.
        optimisation: the local optimiser's settings this round.
        unsent: parameters that clients train and do not send.
        masked: whether clients have only parts of some parameters.
    """

    model: ModelFunction
    methods: Sequence[Method]
    broadcasts: Sequence[Slot]
    global_params: Params
    global_buffers: Params
    optimisation: Optimisation
    unsent: Collection[str] = ()
    masked: bool = False

    def __post_init__(self) -> None:
        self.starters, self.losses, self.wraps, self.corrections, self.followers, self.makers, self.measurers = (
            [(i, method) for i, method in enumerate(self.methods) if method.overrides(hook)]
            for hook in ("start", "loss", "wrap_gradient", "correct_gradient", "after_step", "client_inputs", "over_data")
        )
        self.local_step = 0
        """The client's local step, for a module with a ``training_step`` of its own; no other reads it."""
        stages = [(i, method) for i, method in enumerate(self.methods) if isinstance(method, Stage)]
        self.stages = [(i, stage) for kind in ORDER for i, stage in stages if stage.kind == kind]
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
        return _masked(params, tensors.masks)

    def total_loss(self, apply: Apply, params: Params, batch: Batch, contexts: list[Context]) -> tuple[Tensor, Tensor]:
        """The task loss with every method's term, and the task loss alone."""
        task_loss = apply.loss(params, batch)
        total = task_loss
        for i, method in self.losses:
            total = total + method.loss(apply, params, batch, task_loss, contexts[i])
        return total, task_loss

    def gradient(self, base: GradientFunction, params: Params, batch: Batch, contexts: list[Context], masks: Params) -> Gradient:
        """The gradient that the optimiser sees: ``base`` inside every wrapper, then every correction, then the masks."""
        function = base
        for i, method in self.wraps:
            function = method.wrap_gradient(function, contexts[i])
        result = function(params, batch)
        values = result.values
        for i, method in self.corrections:
            values = method.correct_gradient(values, params, contexts[i])
        return result._replace(values=_masked(values, masks))

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
        return _masked(params, tensors.masks), tensors._replace(clients=clients)

    def over_data(self, params: Params, buffers: Params, batch: Batch, tensors: ClientTensors) -> list[Slot]:
        """What methods measure on a batch of the client's own data, once it has trained."""
        contexts = self.contexts(tensors, buffers, tensors.num_steps)
        values: list[Slot] = [{} for _ in self.methods]
        for i, method in self.measurers:
            values[i] = method.over_data(self.apply(buffers), params, batch, contexts[i])
        return values

    def finish(
        self, delta: Params, params: Params, buffers: Params, tensors: ClientTensors, measured: Sequence[Slot] | None = None
    ) -> tuple[Envelope, list[Slot], Manifest]:
        """The chain of what leaves the client: its envelope, after all stages, with a description; and each method's new client state."""
        contexts = self.contexts(tensors, buffers, tensors.num_steps, measured)
        clients, sends_weights = list(tensors.clients), True
        messages: dict[str, Upload] = {}
        for i, method in enumerate(self.methods):
            if method.overrides("finish_client"):
                messages[method.name] = upload = method.finish_client(delta, params, contexts[i])
                sends_weights, delta = sends_weights and upload.delta is not None, delta if upload.delta is None else upload.delta
                clients[i] = upload.client
        envelope = Envelope(
            {name: value for name, value in delta.items() if name not in self.unsent} if sends_weights else {},
            {name: buffers[name] for name in self.model.shared_buffers} if sends_weights else {},
            {name: dict(upload.mean) for name, upload in messages.items()},
            {name: dict(upload.sum) for name, upload in messages.items()},
        )
        plain, fields = sizes_of(envelope), None
        for i, stage in self.stages if pytree.tree_leaves(envelope) else ():
            if stage.kind == "encode" and fields is None:
                fields = fields_of(envelope)
            envelope, clients[i] = stage.send(envelope, contexts[i])
        params_sent = {
            name: sizes_of(Envelope({name: envelope.delta[name]}, {}))["model"] for name in tensors.masks if envelope.delta
        }
        return envelope, clients, Manifest(sizes_of(envelope), plain, params_sent, fields)


def _masked(values: Params, masks: Params) -> Params:
    """The values with 0 in the place of entries that the client does not have."""
    return {name: value * masks[name] if name in masks else value for name, value in values.items()} if masks else values


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
