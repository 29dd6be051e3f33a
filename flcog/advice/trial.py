"""A trial client with random numbers, for calling single hooks."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from flcog.apply import Apply, apply_of
from flcog.core.randomness import make_rng
from flcog.core.trees import containers_copied
from flcog.core.types import Batch, Params
from flcog.method import ClientData, Context, GlobalModel, Gradient, Method, Plan, Upload, first_contact
from flcog.method.given import broadcast_of, given
from flcog.server.engine import Engine
from flcog.server.state import ServerState


class Trial:
    """Calls single hooks with random numbers and judges their results. Nothing is kept.

    A hook that raises an error is not judged: it may need values that only a round provides.

    Args:
        engine: of the run.
        server: the state before its first round.
    """

    def __init__(self, engine: Engine, server: ServerState) -> None:
        self.engine, self.server = engine, server
        self.view = engine.clients.here.view(0, server.round)

    def ignores(self, method: Method, hook: str) -> bool:
        """Whether the hook returns the same for two unrelated inputs."""
        return judged(lambda: [self._returned(method, hook, seed) for seed in (1, 2)], _equal)

    def changes(self, method: Method, hook: str) -> bool:
        """Whether the hook returns anything but its input."""
        return judged(
            lambda: [self._returned(method, hook, 1)[0], self._input(hook, 1)], lambda one, other: not _equal(one, other)
        )

    def sends_no_weights(self, method: Method) -> bool:
        """Whether its clients send no change of the model."""
        return judged(lambda: [self.upload(method, self.context(method), self.numbers(1))], lambda upload: upload.delta is None)

    def averages_numbers_alone(self, method: Method) -> bool:
        """Whether the server averages nothing of it but single numbers, which are for the log."""

        def call() -> list[Upload]:
            context, params = self.context(method), self.params
            if method.overrides("after_step"):  # which may fill the client's state
                context = context._replace(state=method.after_step(self.apply(), params, params, self.batch(), context)[1])
            return [method.finish_client(self.numbers(1), params, context)]

        def judge(upload: Upload) -> bool:
            means = pytree.tree_leaves(dict(upload.mean))
            return upload.delta is None and all(getattr(leaf, "ndim", 0) == 0 for leaf in means)

        return judged(call, judge)

    def takes_no_gradient(self, method: Method) -> bool:
        """Whether its gradient function does not call the function that it wraps."""
        calls: list[Params] = []

        def call() -> list[Any]:
            method.wrap_gradient(self.gradient_function(calls), self.context(method))(self.params, self.batch())
            return [len(calls)]

        return judged(call, lambda count: count == 0)

    def _returned(self, method: Method, hook: str, seed: int) -> list[Any]:
        """The hook's result without the client's own state; the value that the next method receives comes first."""
        value, context, params = self._input(hook, seed), self.context(method), self.params
        if hook == "plan":
            plans = [method.plan(value, self.view, make_rng(0, number)) for number in range(8)]
            changed = [plan for plan in plans if plan is not None and plan != value]  # dropping out is no number of steps
            return [plans if changed else value]
        if hook == "evaluate_at":
            return [method.evaluate_at(containers_copied(self.server.servers[method.name]), value)]
        if hook == "start":
            return list(method.start(self.apply(), value, context))[:1]
        if hook == "correct_gradient":
            return [method.correct_gradient(value, params, context)]
        if hook == "after_step":
            return [method.after_step(self.apply(), value, params, self.batch(), context)[0]]
        upload = self.upload(method, context, value)
        return [upload.delta, dict(upload.mean), dict(upload.sum)]

    @property
    def params(self) -> Params:
        """The global parameters in a dict of their own, which a hook may change."""
        return dict(self.server.params)

    def _input(self, hook: str, seed: int) -> Any:
        return Plan(3 * seed) if hook == "plan" else self.numbers(seed)

    def client_hooks(self, method: Method, ctx: Context) -> dict[str, Callable[[], Any]]:
        """Calls of the client hooks that the method overrides."""
        params, numbers = self.params, self.numbers(1)
        calls: dict[str, Callable[[], Any]] = {
            "draw": lambda: method.draw(make_rng(0, "order", method.name), self.view),
            "start": lambda: method.start(self.apply(), params, ctx),
            "loss": lambda: method.loss(self.apply(), params, self.batch(), params[next(iter(params))].sum(), ctx),
            "wrap_gradient": lambda: method.wrap_gradient(self.gradient_function([]), ctx)(params, self.batch()),
            "correct_gradient": lambda: method.correct_gradient(numbers, params, ctx),
            "after_step": lambda: method.after_step(self.apply(), params, params, self.batch(), ctx),
            "finish_client": lambda: self.upload(method, ctx, numbers),
            "personal": lambda: method.personal(params, ctx),
        }
        return {hook: call for hook, call in calls.items() if method.overrides(hook)}

    def upload(self, method: Method, context: Context, delta: Params) -> Upload:
        """What a client sends whose model has changed by ``delta``."""
        end = {name: value + delta[name] for name, value in self.server.params.items()}
        return method.finish_client(delta, end, context)

    def apply(self) -> Apply:
        """The model, with buffers of its own."""
        return apply_of(self.engine.model, {name: value.clone() for name, value in self.engine.model.buffers.items()})

    def gradient_function(self, calls: list[Params]) -> Callable[[Params, Batch], Gradient]:
        """A gradient of random numbers; every call adds its parameters to ``calls``."""

        def gradient(params: Params, batch: Batch) -> Gradient:
            calls.append(params)
            buffers = {name: value.clone() for name, value in self.server.buffers.items()}
            return Gradient(self.numbers(3), buffers, torch.zeros(()))

        return gradient

    def numbers(self, seed: int) -> Params:
        """Random numbers in the shapes of the parameters."""
        rng = torch.Generator().manual_seed(seed)
        return {n: torch.randn(v.shape, generator=rng).to(v) for n, v in self.server.params.items()}

    def batch(self) -> Batch:
        """Two samples of the training set."""
        return Batch(*self.engine.reader.train(self.engine.federation.partition.indices[:2]))

    def context(self, method: Method, kind: type[Context] = Context) -> Context:
        """The context of the first client in its first round.

        Args:
            method: whose context it is.
            kind: the class of the context; a subclass can record the fields that are read.
        """
        engine, server = self.engine, self.server
        draws = method.draw(make_rng(0, "order", method.name), self.view)
        ctx = kind(
            received=GlobalModel(server.params, server.buffers),
            server=broadcast_of(method, server.servers[method.name]),
            state=first_contact(method, server.params, server.buffers, self.view).state,
            draws=engine.to_device(draws),
            inputs={},
            buffers=engine.model.buffers,
            step=0,
            num_steps=2,
            data=ClientData(self.view.num_samples, 1.0, {}, self.view.label_counts if method.needs_label_counts else None),
            optimisation=engine.optimisation(server.round),
        )
        return given(ctx)


def judged(call: Callable[[], Sequence[Any]], judge: Callable[..., bool]) -> bool:
    """The judgement on the results of hooks; False if a hook raises an error."""
    try:
        return judge(*call())
    except Exception:  # users' hooks may raise anything
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
