"""The client side of a round as pure functions: it combines the hooks of all methods in the same way for every executor."""

from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from flcog.core.progress import Progress
from flcog.core.types import Batch, Params, Slot
from flcog.functional.apply import Apply
from flcog.functional.model_function import ModelFunction
from flcog.method import (
    Attack,
    ClientData,
    Context,
    GlobalModel,
    Gradient,
    GradientFunction,
    LocalParts,
    Method,
    Optimisation,
    Stage,
    Upload,
)
from flcog.method.method import with_measures
from flcog.method.personal import DOWNLOAD
from flcog.method.returned import as_given, as_tensors, check_params, check_state, check_term, check_type, is_checked, untouched
from flcog.method.stage import ORDER
from flcog.wire.envelope import Envelope, Manifest, fields_of, map_fields, sizes_of

Results = tuple[Params, Tensor, Params]
"""The buffers after a forward pass, the task loss, and the logged values."""

Differentiate = Callable[[Callable[[Params], tuple[Tensor, Results]], Params], tuple[Params, Results]]
"""``differentiate(f, params)`` returns the gradient of the first result of ``f``, and its second result."""


class ClientTensors(NamedTuple):
    """The values of one client in one round. Under vmap every tensor has a leading client axis.

    ``states``, ``draws`` and ``inputs`` have an entry for each method. ``masks`` are the parts of parameters that the client has, if it
    does not have whole parameters. ``started`` are the parameters that differ from the received ones before the first step.
    """

    states: list[Slot]
    draws: list[Slot]
    inputs: list[Slot]
    num_steps: Tensor | int
    num_samples: Tensor | int
    weight: Tensor | float
    masks: Params = {}
    started: Params = {}


@dataclass
class Program:
    """The client side of one round: the model with the active methods, and all values that clients share.

    Clients train the parameters in ``unsent`` without sending them. ``masked`` clients have only parts of some parameters. Methods do
    not see the parameters that may stay at the clients, ``local``.
    """

    model: ModelFunction
    methods: Sequence[Method]
    broadcasts: Sequence[Slot]
    received: GlobalModel
    optimisation: Optimisation
    unsent: Collection[str] = ()
    masked: bool = False
    progress: Progress = field(default_factory=Progress)
    local: Collection[str] = ()

    def __post_init__(self) -> None:
        self.starters, self.losses, self.wraps, self.corrections, self.followers, self.measurers = (
            [(i, method) for i, method in enumerate(self.methods) if method.overrides(hook)]
            for hook in ("start", "loss", "wrap_gradient", "correct_gradient", "after_step", "over_data")
        )
        # Attackers poison a batch before any other method sees it: DPSGD's gradients of single samples, for example.
        self.wraps.sort(key=lambda wrap: isinstance(wrap[1], Attack))
        self.maps_gradient = any(method.maps_gradient for _, method in self.wraps)
        self.local_step = 0
        """The number of the local step, for a module with its own ``training_step``."""
        stages = [(i, method) for i, method in enumerate(self.methods) if isinstance(method, Stage)]
        self.stages = [(i, stage) for kind in ORDER for i, stage in stages if stage.kind == kind]
        self.needs_context = bool(self.losses or self.wraps or self.corrections or self.followers)
        self.keeper = next((i for i, method in enumerate(self.methods) if isinstance(method, LocalParts)), -1)
        """The position of the method that keeps the local parameters; -1 if none does in this round."""
        self.local = [name for name in self.received.params if name in self.local]
        self._shared = self.received._replace(params=self._shown(self.received.params))

    def _shown(self, params: Params, to: int = -1) -> Params:
        """The parameters as a method sees them: the shared ones, unless it is the one that keeps the others."""
        own = () if to == self.keeper >= 0 else self.local
        return {name: value for name, value in params.items() if name not in own} if own else dict(params)

    def _completed(self, params: Params, seen: Params) -> Params:
        """All parameters, with the values that a hook has returned for the parameters in ``seen``."""
        return params | seen if self.local else seen

    def apply(self, buffers: Params, live: bool = False) -> Apply:
        """The model in training mode with these buffers, as hooks receive it."""
        return Apply(self.model, buffers, live, self.local_step)

    def contexts(
        self, tensors: ClientTensors, buffers: Params, step: int | Tensor, means: Sequence[Slot] | None = None
    ) -> list[Context]:
        """The context of each method, which contains the method's view of the client."""
        data = [ClientData(tensors.num_samples, tensors.weight, mean) for mean in means or [{}] * len(self.methods)]
        sent = [
            {**broadcast, **draws[DOWNLOAD]} if DOWNLOAD in draws else broadcast
            for broadcast, draws in zip(self.broadcasts, tensors.draws, strict=True)
        ]
        parts = zip(sent, tensors.states, tensors.draws, tensors.inputs, data, strict=True)
        started = self.received.params | tensors.started
        return [
            as_given(
                Context(
                    self.received if i == self.keeper else self._shared,
                    *(broadcast, state, draws, inputs, buffers, step, tensors.num_steps, own, self.optimisation),
                    self._shown(started, i),
                )
            )
            for i, (broadcast, state, draws, inputs, own) in enumerate(parts)
        ]

    def start(self, params: Params, buffers: Params, tensors: ClientTensors) -> tuple[Params, ClientTensors]:
        """The parameters before the client's first step, and the client with the data that methods made for it."""
        if self.keeper >= 0:
            params = params | tensors.states[self.keeper]["own"]
        if self.starters:
            contexts, inputs = self.contexts(tensors, buffers, 0), list(tensors.inputs)
            for i, method in self.starters:
                self.progress.enter(method.phase)
                apply, seen = self.apply(buffers), self._shown(params, i)
                apply.own = {name: params[name] for name in self.local}
                with _watched(method, "start", contexts[i]):
                    found = method.start(apply, dict(seen), contexts[i])
                started, inputs[i] = check_type(method, "start", found, tuple, "a tuple of the parameters and its inputs")
                params = self._completed(params, check_params(method, "start", started, seen))
            tensors = tensors._replace(inputs=inputs)
            self.progress.enter("training")
        params, received = _masked(params, tensors.masks), self.received.params
        return params, tensors._replace(started={name: value for name, value in params.items() if value is not received[name]})

    def with_terms(self, apply: Apply, params: Params, batch: Batch, task_loss: Tensor, contexts: list[Context]) -> Tensor:
        """The task loss plus the terms of all methods."""
        total, apply.own = task_loss, {name: params[name] for name in self.local}
        for i, method in self.losses:
            with _watched(method, "loss", contexts[i], params):
                term = method.loss(apply, self._shown(params, i), batch, task_loss, contexts[i])
                total = total + check_term(method, term)
        return total

    def gradient(self, base: GradientFunction, params: Params, batch: Batch, contexts: list[Context], masks: Params) -> Gradient:
        """The gradient for the optimiser: ``base`` inside all wrappers, then all corrections, then the masks."""
        result = self.wrapped(base, params, batch, contexts)
        return result._replace(values=self.corrected(result.values, params, contexts, masks))

    def wrapped(self, base: GradientFunction, params: Params, batch: Batch, contexts: list[Context]) -> Gradient:
        """The gradient of a batch: ``base`` inside all wrappers.

        Its ``state`` contains the new states that methods' wrappers returned, by the method's position in the list of methods.
        """
        function, states = base, dict[int, Slot]()
        for i, method in self.wraps:
            function = _collecting(method, method.wrap_gradient(function, contexts[i]), contexts[i], i, states)
        return function(params, batch)._replace(state=states)

    def corrected(self, values: Params, params: Params, contexts: list[Context], masks: Params) -> Params:
        """The gradient after all corrections and the masks."""
        for i, method in self.corrections:
            seen = self._shown(params, i)
            with _watched(method, "correct_gradient", contexts[i], params):
                corrected = method.correct_gradient(self._shown(values, i), dict(seen), contexts[i])
            if is_checked(contexts[i].step):
                check_params(method, "correct_gradient", corrected, seen)
            values = self._completed(values, corrected)
        return _masked(values, masks)

    def pure_gradient(self, differentiate: Differentiate, buffers: Params, contexts: list[Context]) -> GradientFunction:
        """The gradient of the total loss as a pure function, which starts from the same ``buffers`` in every call."""

        def gradient(params: Params, batch: Batch) -> Gradient:
            def loss(params: Params) -> tuple[Tensor, Results]:
                # A forward pass updates BatchNorm's statistics in place, so each pass needs a copy.
                apply = self.apply({name: buffer.clone() for name, buffer in buffers.items()})
                task_loss = apply.loss(params, batch)
                logged = apply.logged
                total = self.with_terms(apply, params, batch, task_loss, contexts)
                return total, (apply.buffers, task_loss.detach(), logged)

            values, (new_buffers, task_loss, logged) = differentiate(loss, params)
            return Gradient(values, new_buffers, task_loss, logged=logged)

        return gradient

    def after_step(
        self, step: int | Tensor, changed: tuple[Params, Params], buffers: Params, tensors: ClientTensors, batch: Batch
    ) -> tuple[Params, ClientTensors]:
        """The parameters and states after the hooks that follow an optimiser step.

        ``changed`` are the parameters after the optimiser's step, and before it.
        """
        params, before = changed
        contexts, states = self.contexts(tensors, buffers, step), list(tensors.states)
        for i, method in self.followers:
            apply, seen = self.apply(buffers), self._shown(params, i)
            apply.own = {name: params[name] for name in self.local}
            with _watched(method, "after_step", contexts[i], params, before):
                found = method.after_step(apply, dict(seen), self._shown(before, i), batch, contexts[i])
            after, states[i] = check_type(method, "after_step", found, tuple, "a tuple of the parameters and its state")
            if is_checked(step):
                check_params(method, "after_step", after, seen)
                check_state(method, "after_step", states[i], tensors.states[i])
            params = self._completed(params, after)
        return _masked(params, tensors.masks), tensors._replace(states=states)

    def follow(self, step: int, before: Params, batch: Batch, tensors: ClientTensors) -> ClientTensors:
        """Let methods change the module's own parameters, and their states. ``before`` are the parameters before the step."""
        params, buffers = self.model.params, self.model.buffers
        new, tensors = self.after_step(step, (params, before), buffers, tensors, batch)
        tensors = tensors._replace(states=self.model.owned(tensors.states))
        for name, value in new.items():
            if value is not params[name]:
                params[name].copy_(value)
        return tensors

    def over_data(self, params: Params, buffers: Params, batch: Batch) -> list[Slot]:
        """For each method, the value of its ``over_data`` on a batch of the client's own data."""
        values: list[Slot] = [{} for _ in self.methods]
        for i, method in self.measurers:
            assert method.over_data is not None
            apply = self.apply(buffers)
            apply.received = self.received
            values[i] = method.over_data(apply, dict(params), batch)
        return values

    def finish(
        self, delta: Params, params: Params, buffers: Params, tensors: ClientTensors, means: Sequence[Slot] | None = None
    ) -> tuple[Envelope, list[Slot], Manifest]:
        """The client's envelope after all stages, the new state of each method, and a description of the envelope."""
        contexts = self.contexts(tensors, buffers, tensors.num_steps, means)
        states, sends_weights = list(tensors.states), True
        messages: dict[str, Upload] = {}
        for i, method in enumerate(self.methods):
            if method.overrides("finish_client"):
                with _watched(method, "finish_client", contexts[i], params):
                    upload = method.finish_client(self._shown(delta), self._shown(params, i), contexts[i])
                    messages[method.name] = check_type(method, "finish_client", upload, Upload, "an Upload")
                    if upload.state:  # a method without init_client drops its state here
                        check_state(method, "finish_client", upload.state, tensors.states[i])
                    states[i] = as_tensors(upload.state or {})
                    if upload.delta is not None:
                        delta = check_params(method, "finish_client", upload.delta, params, some=True)
                sends_weights = sends_weights and upload.delta is not None
                if not method.overrides("init_client") and pytree.tree_leaves(states[i]):
                    raise ValueError(
                        f"{method.name}: finish_client returns a state, and flcog keeps the states of methods with init_client alone: "
                        "let init_client return the first state, with the same structure"
                    )
        if self.keeper >= 0:
            states[self.keeper] = {**states[self.keeper], "own": {name: params[name] for name in self.local}}
        sent = {name: value for name, value in delta.items() if name not in self.unsent}
        envelope = Envelope(
            self._within_masks(sent, tensors.masks) if sends_weights else {},
            {name: buffers[name] for name in self.model.shared_buffers if name not in self.unsent} if sends_weights else {},
            {name: dict(upload.mean) for name, upload in messages.items()},
            {name: dict(upload.sum) for name, upload in messages.items()},
        )
        envelope = with_measures(envelope, self.methods)
        plain, plain_params, fields = sizes_of(envelope), _sizes_by_name(envelope.delta, tensors.masks), None
        attacks = [contexts[i].draws["attacks"] for i, stage in self.stages if isinstance(stage, Attack)]
        for i, stage in self.stages if pytree.tree_leaves(envelope) else ():
            if stage.kind == "encode" and fields is None:
                fields = fields_of(envelope)
            staged, states[i] = stage.send(envelope, contexts[i])
            envelope = _unless(attacks, staged, envelope) if stage.kind in ("smooth", "bound") else staged
        envelope = with_measures(envelope, self.methods) if fields is None else envelope
        params_sent = _sizes_by_name(envelope.delta, tensors.masks)
        return envelope, states, Manifest(sizes_of(envelope), plain, params_sent, plain_params, fields)

    def _within_masks(self, delta: Params, masks: Params) -> Params:
        """Set the entries that the client does not have to 0, because methods may have changed them."""
        if not masks:
            return delta
        return {n: torch.where(masks[n], d, 0 - self.received.params[n]) if n in masks else d for n, d in delta.items()}


def _sizes_by_name(delta: Params, names: Iterable[str]) -> dict[str, int]:
    """The bytes of the changes of some parameters; empty if the client sends no change."""
    return {name: sizes_of(Envelope({name: delta[name]}, {}))["model"] for name in names} if delta else {}


def with_states(tensors: ClientTensors, states: dict[int, Slot]) -> ClientTensors:
    """Replace some states of a client, by the methods' positions in their list."""
    return tensors._replace(states=[states.get(i, old) for i, old in enumerate(tensors.states)]) if states else tensors


def _watched(method: Method, hook: str, ctx: Context, *own: Params) -> AbstractContextManager[None]:
    """Refuse a hook that changes in place what all clients receive, or the client's own model, in the client's first step."""
    is_first = is_checked(ctx.step) or hook == "finish_client"
    return untouched(method, hook, ctx.received, ctx.broadcast, *own) if is_first else nullcontext()


def _collecting(
    method: Method, function: GradientFunction, ctx: Context, place: int, states: dict[int, Slot]
) -> GradientFunction:
    """Wrap the gradient function of one method, so that it stores its new state in ``states`` instead of returning it."""

    def gradient(params: Params, batch: Batch) -> Gradient:
        with _watched(method, "wrap_gradient", ctx):
            result = function(dict(params), batch)
        if is_checked(ctx.step):
            check_params(method, "wrap_gradient", result.values, params)
        if result.state is not None:
            states[place] = result.state
        return result._replace(state=None)

    return gradient


def _unless(attacks: Sequence[Tensor], changed: Envelope, envelope: Envelope) -> Envelope:
    """The envelope after a stage, and before it for a client that attacks."""
    for flag in attacks:
        changed = map_fields(lambda new, old, flag=flag: torch.where(flag, old, new), changed, envelope)
    return changed


def _masked(values: Params, masks: Params) -> Params:
    """Set the entries that the client does not have to 0."""
    return {name: value * masks[name] if name in masks else value for name, value in values.items()} if masks else values


def differentiate_pure(function: Callable[[Params], tuple[Tensor, Results]], params: Params) -> tuple[Params, Results]:
    """Differentiate with torch.func, which vmap can transform."""
    return torch.func.grad(function, has_aux=True)(params)


def differentiate_eager(function: Callable[[Params], tuple[Tensor, Results]], params: Params) -> tuple[Params, Results]:
    """Differentiate with plain autograd, so that a traceback in the loop shows the user's own lines."""
    with torch.enable_grad():
        leaves = {name: value.detach().requires_grad_() for name, value in params.items()}
        loss, rest = function(leaves)
        values = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True, materialize_grads=True)
        return dict(zip(leaves, values, strict=True)), rest
