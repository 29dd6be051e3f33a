"""Advice for ``flcog check``: work of methods that other methods of the list undo, and options without effect.

``fit`` gives no advice: it refuses combinations that cannot work, and its summary warns of missing error feedback.
"""

import itertools
import warnings
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

from flcog.core.trees import containers_copied
from flcog.core.types import Params
from flcog.method import CLIENT_HOOKS, Method
from flcog.schedules import Piecewise
from flcog.server import round as rounds
from flcog.server.engine import Engine
from flcog.server.evaluate import evaluated_params
from flcog.server.state import ServerState

CHAINS = {
    "plan": (0, "the number of local steps"),
    "start": (1, "where clients start"),
    "correct_gradient": (0, "the gradient"),
    "after_step": (1, "the model after each local step"),
    "finish_client": (0, "the change that clients send"),
    "server_step": (2, "the server's step"),
    "evaluate_at": (1, "the model that is evaluated"),
}
"""Hooks that act one after another on one value: its place among the arguments, and its name."""


class Finding(NamedTuple):
    """One piece of advice by ``flcog check``.

    Args:
        method: the name of the method, or of the client module.
        hook: its hook or option.
        consequence: the effect on a run.
        fix: the change that avoids it.
    """

    method: str
    hook: str
    consequence: str
    fix: str

    def __str__(self) -> str:
        return f"{self.method}.{self.hook} {self.consequence}: {self.fix}"


def advise(engine: Engine, server: ServerState) -> list[Finding]:
    """All findings. The run stays as it is; an error of a hook is raised. A whole round is tried, so a client takes few steps."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a hook that warns does so in its round
        return [*options_without_effect(engine), *missing_feedback(engine), *lost_work(engine, server)]


def options_without_effect(engine: Engine) -> Iterator[Finding]:
    """Methods that start too late, schedules that change too late, and weights that are replaced."""
    rounds, module = engine.settings.rounds, engine.model.module
    for method in engine.methods:
        if method.start_round >= rounds:
            consequence = f"is {method.start_round}, so the method never acts in a run of {rounds} rounds"
            yield Finding(method.name, "start_round", consequence, "lower it, or raise trainer.rounds")
    for earlier, later in itertools.combinations(_overriding(engine, "weights"), 2):
        only_weighs = not any(earlier.overrides(hook) for hook in (*CLIENT_HOOKS, "server_step"))
        if only_weighs and _meet(earlier, later, engine):
            consequence, fix = f"replaces the weights of {earlier.name}", f"swap them to weigh by {earlier.name}"
            yield Finding(later.name, "weights", consequence, fix)
    owners: list[tuple[str, Any]] = [(type(module).__name__, module), *((method.name, method) for method in engine.methods)]
    for owner, thing in owners:
        for name, schedule in vars(thing).items():
            for boundary in schedule.boundaries if isinstance(schedule, Piecewise) else ():
                if boundary >= rounds:
                    consequence = f"changes after round {boundary}, which a run of {rounds} rounds never reaches"
                    yield Finding(owner, name, consequence, "lower the boundary, or raise trainer.rounds")


def missing_feedback(engine: Engine) -> Iterator[Finding]:
    """Codecs without error feedback beside methods whose servers follow their clients' states by uploads, as SCAFFOLD's does."""
    follow = ("init_client", "init_server", "finish_client", "server_step")
    followers = [method for method in engine.methods if all(map(method.overrides, follow))]
    for codec in engine.methods:
        if getattr(codec, "error_feedback", True):  # other methods have no such option
            continue
        if names := [method.name for method in followers if _meet(method, codec, engine)]:
            consequence = (
                f"is false, so that the errors of the codec are missing where {' and '.join(names)} add up changes of the clients' "
                "states at the server, and training can diverge"
            )
            yield Finding(codec.name, "error_feedback", consequence, "set it to true")


class CalledTwice:
    """A hook of a method that a tried round calls, each time also with random numbers in place of the value that it receives."""

    def __init__(self, method: Method, hook: str) -> None:
        self._hook, self._place = getattr(method, hook), CHAINS[hook][0]
        self.changes = False
        """Whether it makes anything but the value."""
        self.made, self.same = set[str](), set[str]()
        """The parts of its result, and those that do not depend on the value."""

    def __call__(self, *arguments: Any) -> Any:
        given, results = [list(arguments), list(arguments)], list[Any]()
        given[0][self._place] = _unlike(arguments[self._place])
        states = [(rng, rng.get_state()) for rng in arguments if isinstance(rng, torch.Generator)]
        for each in given:
            for rng, state in states:
                rng.set_state(state)
            results.append(self._hook(*containers_copied(each)))
        parts = [_parts(result[0] if isinstance(result, tuple) else result) for result in results]
        received = [_parts(each[self._place]) for each in given]
        pairs = ((own[name], value[name]) for own, value in zip(parts, received, strict=True) for name in own)
        self.changes |= not all(torch.equal(own, value) for own, value in pairs)
        same = {name for name in parts[1] if name in parts[0] and torch.equal(parts[0][name], parts[1][name])}
        self.made, self.same = set(parts[1]), self.same & same if self.made else same
        return results[1]


def _parts(value: Params | int | None) -> Params:
    return value if isinstance(value, dict) else {} if value is None else {"": torch.as_tensor(value)}


def _unlike(value: Any) -> Any:
    if not isinstance(value, dict):
        return 2 * value + 3
    rng = torch.Generator().manual_seed(0)
    return {name: 10 * torch.randn(tensor.shape, generator=rng).to(tensor) for name, tensor in value.items()}


def lost_work(engine: Engine, server: ServerState) -> Iterator[Finding]:
    """Try the first round in which all methods have started. One finding per contribution that another method of the list undoes."""
    number = max((method.start_round for method in engine.methods if method.start_round < engine.settings.rounds), default=0)
    state, calls = server.copy(number), {hook: dict[str, CalledTwice]() for hook in CHAINS}
    try:
        for hook in CHAINS:
            for method in _overriding(engine, hook):
                vars(method)[hook] = calls[hook][method.name] = CalledTwice(method, hook)
        planned = rounds.plan(engine, state, rounds.select(engine, state))
        if planned.plans:
            planned, aggregate = rounds.train(engine, state, planned, directions=False)
            engine.clients.commit([])
            rounds.step(engine, state, planned, aggregate)
        evaluated_params(engine, state)
    finally:
        for hook in CHAINS:
            for method in _overriding(engine, hook):
                vars(method).pop(hook, None)
    for hook, (_, value) in CHAINS.items():
        on_server, earlier = hook == "server_step", list[str]()  # where a step may undo an earlier one in part
        for name, call in calls[hook].items():
            if earlier and call.same and (on_server or call.same == call.made):
                of, listed = "" if call.same == call.made else f" of {min(call.same)}", " and ".join(earlier)
                yield Finding(
                    name, hook, f"replaces {value}{of}, so the work of {listed} is lost", f"list {name} before {listed}"
                )
            if call.changes or (on_server and call.made):  # a first step may leave the change as it is
                earlier.append(name)


def _overriding(engine: Engine, hook: str) -> list[Method]:
    return [method for method in engine.methods if method.overrides(hook)]


def _meet(one: Method, other: Method, engine: Engine) -> bool:
    """Whether both act in some round of the run."""
    starts = (round for round in (one.start_round, other.start_round) if round < engine.settings.rounds)
    return any(one.active(round) and other.active(round) for round in starts)
