"""Contributions that other methods of the list undo, found before round 1: every hook is tried on a client of random numbers.

What a hook makes of its input is seen by giving it two: where the result is the same, whatever earlier methods have made of the input
is lost. A hook that cannot be tried so, as it needs what only a round brings, is passed over: it is never accused.
"""

import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from flcog.apply import Apply, apply_of
from flcog.core.randomness import make_rng
from flcog.core.types import Batch, Params
from flcog.method import ClientData, Context, GlobalModel, Gradient, Method, Note, Plan, WarningNote, first_contact
from flcog.server.engine import Engine
from flcog.server.state import ServerState

REPLACED = {
    "plan": "the number of local steps",
    "start": "where clients start",
    "correct_gradient": "the gradient",
    "after_step": "the model after each local step",
    "finish_client": "what clients send of the model",
    "evaluate_at": "the model that is evaluated",
}
"""Hooks in a chain, with what a method replaces that ignores what comes in. Weights are noted by ``notes_on_methods``."""


def notes_on_order(engine: Engine, server: ServerState) -> list[Note]:
    """A line for each contribution that is lost."""
    if len(engine.methods) < 2:
        return []
    trial = Trial(engine, server)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a hook that warns does so in its round
        texts = [
            *_replaced(engine, trial),
            *_never_computed(engine, trial),
            *_never_sent(engine, trial),
            *_unweighed(engine, trial),
        ]
    return [WarningNote(text) for text in texts]


def _replaced(engine: Engine, trial: "Trial") -> Iterator[str]:
    for hook, what in REPLACED.items():
        chain = [method for method in engine.methods if method.overrides(hook)]
        for place, later in enumerate(chain):
            earlier = [method for method in chain[:place] if _meet(method, later, engine) and trial.changes(method, hook)]
            if earlier and trial.ignores(later, hook):
                names = _listed(earlier)
                yield f"{later.name} is listed after {names} and replaces {what}: what {names} makes of it is lost"


def _never_computed(engine: Engine, trial: "Trial") -> Iterator[str]:
    """A gradient that is not computed takes all terms of the loss with it, wherever they are listed.

    Where the model does not move in a local step either, all else that methods make of the gradient goes with them.
    """
    wraps, terms, corrections = (
        [method for method in engine.methods if method.overrides(hook)] for hook in ("wrap_gradient", "loss", "correct_gradient")
    )
    for place, method in enumerate(wraps):
        added = _others([*wraps[:place], *terms], method, engine)
        changed = [other for other in _others([*wraps[place + 1 :], *corrections], method, engine) if other not in added]
        if not (added or changed) or not trial.takes_no_gradient(method):
            continue
        if added:
            yield f"{method.name} takes no gradient of the loss: what {_listed(added)} would add to it is never computed"
        if changed and trial.ignores(method, "after_step"):
            yield f"{method.name} takes no gradient of the loss and moves no model: what {_listed(changed)} makes of the gradient is lost"


def _others(methods: Sequence[Method], method: Method, engine: Engine) -> list[Method]:
    """Those that act beside it, each once."""
    by_name = {other.name: other for other in methods if other.name != method.name}
    return [other for other in by_name.values() if _meet(other, method, engine)]


def _never_sent(engine: Engine, trial: "Trial") -> Iterator[str]:
    chain = [method for method in engine.methods if method.overrides("finish_client")]
    for place, sender in enumerate(chain):
        later = [
            method for method in chain[place + 1 :] if _meet(method, sender, engine) and trial.changes(method, "finish_client")
        ]
        if later and trial.sends_no_weights(sender):
            names = _listed(later)
            yield f"{sender.name} sends no change of the model, so what {names} makes of it is lost: list {names} before {sender.name}"


def _unweighed(engine: Engine, trial: "Trial") -> Iterator[str]:
    weighing = [method for method in engine.methods if method.overrides("weights")]
    for sender in (method for method in engine.methods if method.overrides("finish_client")):
        others = _others(weighing, sender, engine)
        if others and trial.averages_numbers_alone(sender):
            yield f"{sender.name} sends no change of the model and averages nothing but numbers: the weights of {_listed(others)} are lost"


def _meet(one: Method, other: Method, engine: Engine) -> bool:
    """Whether both act in some round of the run."""
    return any(
        one.active(round) and other.active(round)
        for round in (one.start_round, other.start_round)
        if round < engine.settings.rounds
    )


def _listed(methods: Sequence[Method]) -> str:
    return " and ".join(method.name for method in methods)


class Trial:
    """A client of random numbers, on which hooks are tried; nothing of it is kept.

    Args:
        engine: the run's.
        server: the state before its first round.
    """

    def __init__(self, engine: Engine, server: ServerState) -> None:
        self.engine, self.server = engine, server
        self.view = engine.clients.here.view(0, server.round)

    def ignores(self, method: Method, hook: str) -> bool:
        """Whether the hook makes the same of two unrelated inputs."""
        return _tried(lambda: [self._make(method, hook, seed) for seed in (1, 2)], lambda one, other: _equal(one, other))

    def changes(self, method: Method, hook: str) -> bool:
        """Whether the hook returns anything but its input."""
        return _tried(lambda: [self._make(method, hook, 1), self._given(hook, 1)], lambda made, given: not _equal(made[0], given))

    def sends_no_weights(self, method: Method) -> bool:
        return _tried(lambda: self._make(method, "finish_client", 1), lambda delta, *rest: delta is None)

    def averages_numbers_alone(self, method: Method) -> bool:
        """Whether what it sends is averaged nowhere but in numbers, for the log."""

        def call() -> list[Any]:
            context, params = self._context(method), self.server.params
            if method.overrides("after_step"):  # which may fill what it keeps of the client
                context = context._replace(state=method.after_step(self._apply(), params, params, self._batch(), context)[1])
            upload = method.finish_client(self._numbers(1), params, context)
            return [upload.delta, *pytree.tree_leaves(dict(upload.mean))]

        return _tried(call, lambda delta, *means: delta is None and all(getattr(leaf, "ndim", 0) == 0 for leaf in means))

    def takes_no_gradient(self, method: Method) -> bool:
        """Whether its gradient function leaves the one that it wraps alone."""
        calls = []

        def gradient(params: Params, batch: Batch) -> Gradient:
            calls.append(params)
            return Gradient(
                self._numbers(3), {name: value.clone() for name, value in self.server.buffers.items()}, torch.zeros(())
            )

        def call() -> list[Any]:
            method.wrap_gradient(gradient, self._context(method))(self.server.params, self._batch())
            return [len(calls)]

        return _tried(call, lambda count: count == 0)

    def _make(self, method: Method, hook: str, seed: int) -> list[Any]:
        """What the hook returns, but for the client's own state; first what goes on along the chain."""
        given, params = self._given(hook, seed), self.server.params
        if hook == "plan":
            plans = [method.plan(given, self.view, make_rng(0, number)) for number in range(8)]
            changed = [plan for plan in plans if plan is not None and plan != given]  # to drop out is no number of steps
            return [plans if changed else given]
        if hook == "evaluate_at":
            return [method.evaluate_at(self.server.servers[method.name], given)]
        context = self._context(method)
        if hook == "start":
            return list(method.start(self._apply(), given, context))[:1]
        if hook == "correct_gradient":
            return [method.correct_gradient(given, params, context)]
        if hook == "after_step":
            return [method.after_step(self._apply(), given, params, self._batch(), context)[0]]
        end = {name: value + given[name] for name, value in params.items()}
        upload = method.finish_client(given, end, context)
        return [upload.delta, dict(upload.mean), dict(upload.sum)]

    def _apply(self) -> Apply:
        return apply_of(self.engine.model, {name: value.clone() for name, value in self.engine.model.buffers.items()})

    def _given(self, hook: str, seed: int) -> Any:
        return Plan(3 * seed) if hook == "plan" else self._numbers(seed)

    def _numbers(self, seed: int) -> Params:
        """Random numbers in the shape of the parameters."""
        rng = torch.Generator().manual_seed(seed)
        return {n: torch.randn(v.shape, generator=rng).to(v) for n, v in self.server.params.items()}

    def _batch(self) -> Batch:
        return Batch(*self.engine.reader.train(self.engine.federation.partition.indices[:2]))

    def _context(self, method: Method) -> Context:
        engine, server, buffers = self.engine, self.server, self.engine.model.buffers
        draws = method.draw(make_rng(0, "order", method.name), self.view)
        return Context(
            received=GlobalModel(server.params, server.buffers),
            server=method.broadcast(server.servers[method.name]),
            state=first_contact(method, server.params, server.buffers, self.view).state,
            draws=engine.to_device(draws),
            inputs={},
            buffers=buffers,
            step=0,
            num_steps=2,
            data=ClientData(self.view.num_samples, 1.0, {}, self.view.label_counts if method.needs_label_counts else None),
            optimisation=engine.optimisation(server.round),
        )


def _tried(call: Callable[[], Sequence[Any]], judge: Callable[..., bool]) -> bool:
    """A judgement on what a hook of anybody's returns; False where it cannot be called like this."""
    try:
        return judge(*call())
    except Exception:  # it needs what only a round brings, or does not take random numbers
        return False


def _equal(one: Any, other: Any) -> bool:
    (leaves, spec), (others, other_spec) = pytree.tree_flatten(one), pytree.tree_flatten(other)
    if spec != other_spec:
        return False
    same = (
        torch.equal(a, b) if isinstance(a, Tensor) and isinstance(b, Tensor) else a == b
        for a, b in zip(leaves, others, strict=True)
    )
    return all(same)
