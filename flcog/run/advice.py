"""Advice for ``flcog check``: work of methods that other methods of the list undo, and options without effect.

``fit`` gives no advice: it refuses combinations that cannot work, and its summary warns of missing error feedback.
"""

import itertools
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch

from flcog.client.program import ClientTensors, Program
from flcog.core.randomness import make_rng
from flcog.core.trees import containers_copied, equal
from flcog.core.types import Batch, Params
from flcog.method import CLIENT_HOOKS, Cohort, GlobalModel, Messages, Method, Workload, first_contact
from flcog.method.returned import broadcast_of, drawn
from flcog.schedules import Piecewise
from flcog.server import round as rounds
from flcog.server.engine import Engine
from flcog.server.round import ServerStep
from flcog.server.state import ServerState

CHAINS = {
    "plan": "the number of local steps",
    "start": "where clients start",
    "correct_gradient": "the gradient",
    "after_step": "the model after each local step",
    "finish_client": "the change that clients send",
    "evaluate_at": "the model that is evaluated",
}
"""Hooks that act one after another on one value, and the name of that value."""


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
        findings = [*options_without_effect(engine), *missing_feedback(engine)]
        with torch.no_grad():
            findings += lost_work(engine, {method.name: Trial(engine, server, method) for method in engine.methods})
        try_round(engine, server, findings)
    return list(dict.fromkeys(findings))


# Options without effect -----------------------------------------------------------------------------------------------------------


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


# The order of methods -------------------------------------------------------------------------------------------------------------


class Trial:
    """A client's first local step with one method alone, on random numbers. Nothing is kept."""

    def __init__(self, engine: Engine, server: ServerState, method: Method) -> None:
        self.engine, self.server, self.method = engine, server, method
        self.view = engine.clients.here.view(0, server.round)
        received = GlobalModel(server.params, server.buffers)
        broadcast = broadcast_of(method, server.servers[method.name])
        self.program = Program(
            engine.model, [method], [broadcast], received, engine.optimisation(server.round), local=engine.local
        )
        state = first_contact(method, server.params, server.buffers, self.view, engine.local).state
        draws = engine.to_device(drawn(method, make_rng(0, "order", method.name), self.view))
        self.tensors = ClientTensors([state], [draws], [{}], 2, self.view.num_samples, 1.0)
        self.tensors = self.program.start(dict(server.params), self.buffers, self.tensors)[1]

    @property
    def buffers(self) -> Params:
        """Buffers for one forward pass, which may change them."""
        return {name: value.clone() for name, value in self.server.buffers.items()}

    def numbers(self, seed: int) -> Params:
        """Random numbers in the shapes of the parameters."""
        rng = torch.Generator().manual_seed(seed)
        return {n: torch.randn(v.shape, generator=rng).to(v) for n, v in self.server.params.items()}

    def call(self, hook: str, seed: int) -> Any:
        """What the hook makes of random numbers: the value that the next method receives."""
        given, params, buffers = self.numbers(seed), dict(self.server.params), self.buffers
        program, tensors, method = self.program, self.tensors, self.method
        batch = Batch(*self.engine.reader.train(self.engine.federation.partition.indices[:2]))

        def finish() -> Params:
            trained = program.after_step(0, (params, params), buffers, tensors, batch)[1]  # may fill the method's state
            end = {name: value + given[name] for name, value in params.items()}
            delta: Params = program.finish(given, end, buffers, trained, program.over_data(params, buffers, batch))[0].delta
            return delta

        planned = method.plan if isinstance(method, Workload) else None
        calls: dict[str, Callable[[], Any]] = {
            "plan": lambda: [planned and planned(3 * seed, self.view, make_rng(0, number)) for number in range(8)],
            "start": lambda: program.start(given, buffers, tensors)[0],
            "correct_gradient": lambda: program.corrected(given, params, program.contexts(tensors, buffers, 0), {}),
            "after_step": lambda: program.after_step(0, (given, params), buffers, tensors, batch)[0],
            "finish_client": finish,
            "evaluate_at": lambda: method.evaluate_at(containers_copied(self.server.servers[method.name]), given),
        }
        return calls[hook]()

    def changes(self, hook: str) -> bool:
        """Whether the hook makes anything but its input."""
        made = self.call(hook, 1)
        if hook == "plan":
            return any(steps not in (None, 3) for steps in made)
        return bool(made) and not equal(made, self.numbers(1))

    def replaces(self, hook: str) -> bool:
        """Whether the hook makes the same of two unrelated inputs, and with it replaces the work of all methods before it."""
        return self.changes(hook) and equal(self.call(hook, 1), self.call(hook, 2))


def lost_work(engine: Engine, trials: dict[str, Trial]) -> Iterator[Finding]:
    """One finding per contribution to clients' training that another method of the list undoes."""
    for hook, value in CHAINS.items():
        chain = _overriding(engine, hook)
        for place, later in enumerate(chain):
            others = {method.name: method for method in chain[:place] if method.name != later.name}.values()
            earlier = [other for other in others if _meet(other, later, engine) and trials[other.name].changes(hook)]
            if earlier and trials[later.name].replaces(hook):
                consequence, fix = f"replaces {value}, so the work of {_listed(earlier)} is lost", f"list {later.name} before "
                yield Finding(later.name, hook, consequence, fix + _listed(earlier))


def try_round(engine: Engine, server: ServerState, findings: list[Finding]) -> None:
    """Try the first round in which all methods have started."""
    number = max((method.start_round for method in engine.methods if method.start_round < engine.settings.rounds), default=0)
    state = server.copy(number)
    planned = rounds.plan(engine, state, rounds.select(engine, state))

    def take_twice(server: ServerState, method: Method, delta: Params, messages: Messages, cohort: Cohort) -> ServerStep:
        """Take the step also with an unlike change of the model. Its result is that of the change as it is."""
        result = rounds.take_step(server, method, dict(delta), messages, cohort)
        earlier = [other for other in planned.methods[: planned.methods.index(method)] if other.overrides("server_step")]
        if earlier and method.overrides("server_step"):
            unlike = {name: torch.where(value == 0, torch.ones_like(value), -value) for name, value in delta.items()}
            other = rounds.take_step(server, method, unlike, messages, cohort)
            if same := [name for name in delta if torch.equal(result[0][name], other[0][name])]:
                of = "" if len(same) == len(delta) else f" of {same[0]}"
                consequence = f"replaces the server's step{of}, so the step of {_listed(earlier)} is lost"
                findings.append(Finding(method.name, "server_step", consequence, f"list {method.name} before {_listed(earlier)}"))
        return result

    if planned.plans:
        planned, aggregate = rounds.train(engine, state, planned, directions=False)
        engine.clients.commit([])
        rounds.step(engine, state, planned, aggregate, take_twice)


def _overriding(engine: Engine, hook: str) -> list[Method]:
    return [method for method in engine.methods if method.overrides(hook)]


def _meet(one: Method, other: Method, engine: Engine) -> bool:
    """Whether both act in some round of the run."""
    starts = (round for round in (one.start_round, other.start_round) if round < engine.settings.rounds)
    return any(one.active(round) and other.active(round) for round in starts)


def _listed(methods: Sequence[Method]) -> str:
    return " and ".join(method.name for method in methods)
