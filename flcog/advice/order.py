"""Contributions that other methods of the list undo.

A hook that returns the same for two different inputs ignores its input, and with it the contributions of all methods before it.
"""

from collections.abc import Iterator, Sequence

from flcog.advice.finding import Finding
from flcog.advice.trial import Trial
from flcog.method import Method
from flcog.server.engine import Engine

CHAINS = {
    "plan": "the number of local steps",
    "start": "where clients start",
    "correct_gradient": "the gradient",
    "after_step": "the model after each local step",
    "finish_client": "the change that clients send",
    "evaluate_at": "the model that is evaluated",
}
"""Hooks that act one after another on one value, and the name of that value."""


def lost_contributions(engine: Engine, trial: Trial) -> Iterator[Finding]:
    """One finding per contribution that is lost."""
    yield from _replaced(engine, trial)
    yield from _never_computed(engine, trial)
    yield from _never_sent(engine, trial)
    yield from _unweighed(engine, trial)


def _replaced(engine: Engine, trial: Trial) -> Iterator[Finding]:
    for hook, value in CHAINS.items():
        chain = _overriding(engine, hook)
        for place, later in enumerate(chain):
            earlier = [method for method in chain[:place] if meet(method, later, engine) and trial.changes(method, hook)]
            if earlier and trial.ignores(later, hook):
                names = _listed(earlier)
                consequence, fix = f"replaces {value}, so the work of {names} is lost", f"list {later.name} before {names}"
                yield Finding(later.name, hook, consequence, fix)


def _never_computed(engine: Engine, trial: Trial) -> Iterator[Finding]:
    """Methods that take no gradient of the loss, which drops every term of the loss, wherever its method is listed.

    If the model does not move in a local step either, all other contributions to the gradient are dropped too.
    """
    wraps, terms, corrections = (_overriding(engine, hook) for hook in ("wrap_gradient", "loss", "correct_gradient"))
    for place, method in enumerate(wraps):
        added = _others([*wraps[:place], *terms], method, engine)
        changed = [other for other in _others([*wraps[place + 1 :], *corrections], method, engine) if other not in added]
        if not (added or changed) or not trial.takes_no_gradient(method):
            continue
        if added:
            names = _listed(added)
            consequence = f"takes no gradient of the loss, so the terms of {names} are never computed"
            yield Finding(method.name, "wrap_gradient", consequence, f"remove {names}")
        if changed and trial.ignores(method, "after_step"):
            names = _listed(changed)
            consequence = f"takes no gradient of the loss and moves no model, so the gradient of {names} is lost"
            yield Finding(method.name, "wrap_gradient", consequence, f"remove {names}")


def _never_sent(engine: Engine, trial: Trial) -> Iterator[Finding]:
    chain = _overriding(engine, "finish_client")
    for place, sender in enumerate(chain):
        later = [other for other in chain[place + 1 :] if meet(other, sender, engine) and trial.changes(other, "finish_client")]
        if later and trial.sends_no_weights(sender):
            names = _listed(later)
            consequence = f"sends no change of the model, so the work of {names} on it is lost"
            yield Finding(sender.name, "finish_client", consequence, f"list {names} before {sender.name}")


def _unweighed(engine: Engine, trial: Trial) -> Iterator[Finding]:
    weighing = _overriding(engine, "weights")
    for sender in _overriding(engine, "finish_client"):
        others = _others(weighing, sender, engine)
        if others and trial.averages_numbers_alone(sender):
            names = _listed(others)
            consequence = f"sends no change of the model and averages only numbers, so the weights of {names} have no effect"
            yield Finding(sender.name, "finish_client", consequence, f"remove {names}")


def _overriding(engine: Engine, hook: str) -> list[Method]:
    return [method for method in engine.methods if method.overrides(hook)]


def _others(methods: Sequence[Method], method: Method, engine: Engine) -> list[Method]:
    """The other methods that act in a round with it, each once."""
    by_name = {other.name: other for other in methods if other.name != method.name}
    return [other for other in by_name.values() if meet(other, method, engine)]


def meet(one: Method, other: Method, engine: Engine) -> bool:
    """Whether both act in some round of the run."""
    return any(
        one.active(round) and other.active(round)
        for round in (one.start_round, other.start_round)
        if round < engine.settings.rounds
    )


def _listed(methods: Sequence[Method]) -> str:
    return " and ".join(method.name for method in methods)
