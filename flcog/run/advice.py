"""Advice for ``flcog check``: work of methods that later methods replace, options without effect, and hooks that draw unseeded numbers.

``fit`` gives no advice: it refuses combinations that cannot work, and its summary warns of missing error feedback.
"""

import functools
import itertools
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from flcog.client.program import ClientTensors, Program
from flcog.core.global_streams import moved, streams
from flcog.core.randomness import make_rng
from flcog.core.trees import containers_copied
from flcog.core.types import Batch, Params, Slot
from flcog.method import CLIENT_HOOKS, Cohort, GlobalModel, Gradient, Messages, Method, Workload, first_contact
from flcog.method.given import broadcast_of, drawn
from flcog.schedules import Piecewise
from flcog.server import round as rounds
from flcog.server.engine import Engine
from flcog.server.round import ServerSteps
from flcog.server.state import ServerState


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
    """All findings. The run stays as it is; an error of a hook is raised.

    Args:
        engine: of a run with few local steps, for a whole round is tried.
        server: the state before its first round.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a hook that warns does so in its round
        findings = [*options_without_effect(engine), *missing_feedback(engine), *outdated_exchanges(engine)]
        with torch.no_grad():
            trials = {method.name: Trial(engine, server, method) for method in engine.methods}
            findings += [*lost_work(engine, trials), *global_randomness(trials)]
        return list(dict.fromkeys([*findings, *lost_server_steps(engine, server)]))


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
    """Codecs without error feedback beside methods whose server adds up the changes of clients' states."""
    for codec in engine.methods:
        if getattr(codec, "error_feedback", True):  # other methods have no such option
            continue
        names = [method.name for method in engine.methods if _sums_client_states(method) and _meet(method, codec, engine)]
        if names:
            consequence = (
                f"is false, so that the errors of the codec are missing where {' and '.join(names)} add up changes of the clients' "
                "states at the server, and training can diverge"
            )
            yield Finding(codec.name, "error_feedback", consequence, "set it to true")


def _sums_client_states(method: Method) -> bool:
    """Whether its server follows its clients' states by their uploads, as SCAFFOLD's does."""
    return all(map(method.overrides, ("init_client", "init_server", "finish_client", "server_step")))


def outdated_exchanges(engine: Engine) -> Iterator[Finding]:
    """Methods that change the data after another has sent statistics of it."""
    sent: list[str] = []
    before = None
    for method in engine.methods:
        exchange = engine.exchanges.get(method.name)
        if exchange is None:
            continue
        if before is not None and exchange.federation is not before:
            for name in sent:
                consequence = f"changes the data after {name} has exchanged statistics of them"
                yield Finding(method.name, "prepare_data", consequence, f"list {name} after {method.name}")
        elif exchange.bytes_sent is not None:
            sent.append(method.name)
        before = exchange.federation


# The order of methods -------------------------------------------------------------------------------------------------------------

CHAINS = {
    "plan": "the number of local steps",
    "start": "where clients start",
    "correct_gradient": "the gradient",
    "after_step": "the model after each local step",
    "finish_client": "the change that clients send",
    "evaluate_at": "the model that is evaluated",
}
"""Hooks that act one after another on one value, and the name of that value."""


class Trial:
    """A client's first local step with one method alone, on random numbers. Nothing is kept.

    Args:
        engine: of the run.
        server: the state before its first round.
        method: the method.
    """

    def __init__(self, engine: Engine, server: ServerState, method: Method) -> None:
        self.method, self.server, self.engine = method, server, engine
        self.view = engine.clients.here.view(0, server.round)
        received = GlobalModel(server.params, server.buffers)
        broadcast = broadcast_of(method, server.servers[method.name])
        self.program = Program(engine.model, [method], [broadcast], received, engine.optimisation(server.round))
        state = first_contact(method, server.params, server.buffers, self.view).state
        self.tensors = ClientTensors([state], [self.draw()], [{}], 2, self.view.num_samples, 1.0)
        self.tensors = self.program.start(dict(server.params), self.buffers, self.tensors)[1]

    def draw(self) -> Slot:
        return self.engine.to_device(drawn(self.method, make_rng(0, "order", self.method.name), self.view))

    @property
    def buffers(self) -> Params:
        """Buffers for one forward pass, which may change them."""
        return {name: value.clone() for name, value in self.server.buffers.items()}

    @property
    def batch(self) -> Batch:
        """Two samples of the training set."""
        return Batch(*self.engine.reader.train(self.engine.federation.partition.indices[:2]))

    def numbers(self, seed: int) -> Params:
        """Random numbers in the shapes of the parameters."""
        rng = torch.Generator().manual_seed(seed)
        return {n: torch.randn(v.shape, generator=rng).to(v) for n, v in self.server.params.items()}

    def call(self, hook: str, seed: int) -> Any:
        """What the hook makes of random numbers: the value that the next method receives, or the messages of ``finish_client``, too."""
        given, params, buffers = self.numbers(seed), dict(self.server.params), self.buffers
        program, tensors, method = self.program, self.tensors, self.method
        (ctx,) = contexts = program.contexts(tensors, buffers, 0)
        planned = method.plan if isinstance(method, Workload) else None
        calls: dict[str, Callable[[], Any]] = {
            "draw": self.draw,
            "plan": lambda: [planned and planned(3 * seed, self.view, make_rng(0, number)) for number in range(8)],
            "start": lambda: program.start(given, buffers, tensors)[0],
            "loss": lambda: method.loss(program.apply(buffers), params, self.batch, params[next(iter(params))].sum(), ctx),
            "wrap_gradient": lambda: self.gradient_calls(),
            "correct_gradient": lambda: program.corrected(given, params, contexts, {}),
            "after_step": lambda: program.after_step(0, (given, params), buffers, tensors, self.batch)[0],
            "finish_client": lambda: self.sent(given),
            "evaluate_at": lambda: method.evaluate_at(containers_copied(self.server.servers[method.name]), given),
        }
        return calls[hook]()

    def gradient_calls(self) -> int:
        """How often the method's gradient function calls the function that it wraps."""
        calls: list[Params] = []

        def gradient(params: Params, batch: Batch) -> Gradient:
            calls.append(params)
            return Gradient(self.numbers(3), self.buffers, torch.zeros(()))

        contexts = self.program.contexts(self.tensors, self.buffers, 0)
        self.program.wrapped(gradient, dict(self.server.params), self.batch, contexts)
        return len(calls)

    def sent(self, delta: Params) -> tuple[Params, Slot, Slot]:
        """The change, the means and the sums that the client sends after a change of its model."""
        params = dict(self.server.params)
        _, tensors = self.program.after_step(0, (params, params), self.buffers, self.tensors, self.batch)  # may fill its state
        means = self.program.over_data(params, self.buffers, self.batch)
        end = {name: value + delta[name] for name, value in params.items()}
        envelope = self.program.finish(delta, end, self.buffers, tensors, means)[0]
        return envelope.delta, envelope.mean.get(self.method.name), envelope.sum.get(self.method.name)

    def ignores(self, hook: str) -> bool:
        """Whether the hook makes the same of two unrelated inputs, and with it replaces the work of all methods before it."""
        if hook == "plan" and not self.changes(hook):
            return False  # a client that drops out has no number of steps
        return _equal(self.call(hook, 1), self.call(hook, 2))

    def changes(self, hook: str) -> bool:
        """Whether the hook makes anything but its input."""
        made = self.call(hook, 1)
        if hook == "plan":
            return any(steps not in (None, 3) for steps in made)
        made = made[0] if hook == "finish_client" else made
        return bool(made) and not _equal(made, self.numbers(1))

    @property
    def sends_no_change(self) -> bool:
        return not self.call("finish_client", 1)[0]

    @property
    def averages_numbers_alone(self) -> bool:
        return self.sends_no_change and all(leaf.ndim == 0 for leaf in pytree.tree_leaves(self.call("finish_client", 1)[1]))


def _equal(one: Any, other: Any) -> bool:
    (leaves, spec), (others, other_spec) = pytree.tree_flatten(one), pytree.tree_flatten(other)
    return spec == other_spec and all(
        torch.equal(a, b) if isinstance(a, Tensor) and isinstance(b, Tensor) else a == b
        for a, b in zip(leaves, others, strict=True)
    )


def lost_work(engine: Engine, trials: dict[str, Trial]) -> Iterator[Finding]:
    """One finding per contribution to clients' training that another method of the list undoes."""
    for hook, value in CHAINS.items():
        chain = _overriding(engine, hook)
        for place, later in enumerate(chain):
            earlier = [method for method in chain[:place] if _meet(method, later, engine) and trials[method.name].changes(hook)]
            if earlier and trials[later.name].ignores(hook):
                consequence, fix = f"replaces {value}, so the work of {_listed(earlier)} is lost", f"list {later.name} before "
                yield Finding(later.name, hook, consequence, fix + _listed(earlier))
    wraps, terms, corrections = (_overriding(engine, hook) for hook in ("wrap_gradient", "loss", "correct_gradient"))
    for place, method in enumerate(wraps):
        added = _others([*wraps[:place], *terms], method, engine)
        changed = [other for other in _others([*wraps[place + 1 :], *corrections], method, engine) if other not in added]
        trial = trials[method.name]
        if not (added or changed) or trial.gradient_calls():
            continue
        if added:
            consequence = f"takes no gradient of the loss, so the terms of {_listed(added)} are never computed"
            yield Finding(method.name, "wrap_gradient", consequence, f"remove {_listed(added)}")
        if changed and method.overrides("after_step") and trial.ignores("after_step"):
            consequence = f"takes no gradient of the loss and moves no model, so the gradient of {_listed(changed)} is lost"
            yield Finding(method.name, "wrap_gradient", consequence, f"remove {_listed(changed)}")
    senders = _overriding(engine, "finish_client")
    for place, sender in enumerate(senders):
        followers = [
            other
            for other in senders[place + 1 :]
            if _meet(other, sender, engine) and trials[other.name].changes("finish_client")
        ]
        if followers and trials[sender.name].sends_no_change:
            consequence = f"sends no change of the model, so the work of {_listed(followers)} on it is lost"
            yield Finding(sender.name, "finish_client", consequence, f"list {_listed(followers)} before {sender.name}")
        weighing = _others(_overriding(engine, "weights"), sender, engine)
        if weighing and trials[sender.name].averages_numbers_alone:
            names = _listed(weighing)
            consequence = f"sends no change of the model and averages only numbers, so the weights of {names} have no effect"
            yield Finding(sender.name, "finish_client", consequence, f"remove {names}")


def lost_server_steps(engine: Engine, server: ServerState) -> Iterator[Finding]:
    """Try the first round, and each round where another server step begins."""
    starts = {method.start_round for method in _overriding(engine, "server_step")}
    for number in sorted({0} | starts):
        if number < engine.settings.rounds:
            findings: list[Finding] = []
            state = server.copy(number)
            planned = rounds.plan(engine, state, rounds.select(engine, state))
            if planned.plans:
                planned, aggregate = rounds.train(engine, state, planned, directions=False)
                engine.clients.commit([])
                rounds.step(engine, state, planned, aggregate, functools.partial(TriedSteps, findings))
            yield from findings


class TriedSteps(ServerSteps):
    """Takes each method's server step twice, with unlike changes of the model, and adds to ``findings`` what it makes the same of."""

    def __init__(self, findings: list[Finding], methods: Sequence[Method], server: ServerState, sent: Collection[str]) -> None:
        super().__init__(methods, server, sent)
        self.findings = findings

    def take(self, method: Method, delta: Params, messages: Messages, cohort: Cohort) -> tuple[Params, Slot, Params]:
        """Take the step, whose result is that of the change as it is."""
        if not method.overrides("server_step"):
            return super().take(method, delta, messages, cohort)
        with noticing_draws(method, "server_step", self.findings):
            result = super().take(method, dict(delta), messages, cohort)
        earlier = [other for other in self.methods[: self.methods.index(method)] if other.overrides("server_step")]
        if earlier:
            unlike = {name: torch.where(value == 0, torch.ones_like(value), -value) for name, value in delta.items()}
            other = super().take(method, unlike, messages, cohort)
            same = [name for name in delta if torch.equal(result[0][name], other[0][name])]
            if same:
                some = same[0] + (f" and {len(same) - 1} more" if len(same) > 1 else "")
                of = "" if len(same) == len(delta) else f" of {some}"
                consequence = f"replaces the server's step{of}, so the step of {_listed(earlier)} is lost"
                fix = f"list {method.name} before {_listed(earlier)}"
                self.findings.append(Finding(method.name, "server_step", consequence, fix))
        if not self.sent and not any(bool(value.any()) for value in (*delta.values(), *result[0].values())):
            senders = [other for other in self.methods if other is not method and other.overrides("finish_client")]
            consequence = f"does nothing, because clients send no change of the model beside {_listed(senders)}"
            self.findings.append(
                Finding(method.name, "server_step", consequence, f"list it after {_listed(senders)}, or remove it")
            )
        return result


# Randomness -----------------------------------------------------------------------------------------------------------------------

SEEDED = {"server_step": 'draw from cohort.rng("noise")', "draw": "draw from the generator that it is given"}
"""The remedies of hooks that have a generator; others have the hook draw."""


def global_randomness(trials: dict[str, Trial]) -> Iterator[Finding]:
    """Hooks that draw from a global generator, whose numbers depend on more than the run's seed."""
    for trial in trials.values():
        findings: list[Finding] = []
        for hook in filter(trial.method.overrides, CLIENT_HOOKS):
            with noticing_draws(trial.method, hook, findings):
                trial.call(hook, 1)
        yield from findings


@contextmanager
def noticing_draws(method: Method, hook: str, findings: list[Finding]) -> Iterator[None]:
    """Add a finding if a global generator has moved within the context."""
    before = streams()
    yield
    if libraries := moved(before):
        consequence = (
            f"draws from the global generator of {' and '.join(libraries)}, so that results differ between executors and runs"
        )
        remedy = SEEDED.get(hook, "draw in the hook draw with its rng, and read ctx.draws")
        findings.append(Finding(method.name, hook, consequence, remedy))


# Methods of the list --------------------------------------------------------------------------------------------------------------


def _overriding(engine: Engine, hook: str) -> list[Method]:
    return [method for method in engine.methods if method.overrides(hook)]


def _others(methods: Sequence[Method], method: Method, engine: Engine) -> list[Method]:
    """The other methods that act in a round with it, each once."""
    by_name = {other.name: other for other in methods if other.name != method.name}
    return [other for other in by_name.values() if _meet(other, method, engine)]


def _meet(one: Method, other: Method, engine: Engine) -> bool:
    """Whether both act in some round of the run."""
    starts = (round for round in (one.start_round, other.start_round) if round < engine.settings.rounds)
    return any(one.active(round) and other.active(round) for round in starts)


def _listed(methods: Sequence[Method]) -> str:
    return " and ".join(method.name for method in methods)
