"""Options that never take effect: methods that start too late, schedules that change too late, and weights that are replaced."""

import itertools
from collections.abc import Iterator
from typing import Any

from flcog.advice.finding import Finding
from flcog.method import CLIENT_HOOKS
from flcog.schedules import Piecewise
from flcog.server.engine import Engine


def options_without_effect(engine: Engine) -> Iterator[Finding]:
    """Findings that need no trial."""
    rounds = engine.settings.rounds
    for method in engine.methods:
        if method.start_round >= rounds:
            consequence = f"is {method.start_round}, so the method never acts in a run of {rounds} rounds"
            yield Finding(method.name, "start_round", consequence, "lower it, or raise trainer.rounds")
    yield from _replaced_weights(engine)
    yield from _late_schedules(engine)


def _replaced_weights(engine: Engine) -> Iterator[Finding]:
    """Methods that only set weights, and are followed by another that sets them."""
    weighing = [method for method in engine.methods if method.overrides("weights")]
    for earlier, later in itertools.combinations(weighing, 2):
        only_weighs = not any(earlier.overrides(hook) for hook in (*CLIENT_HOOKS, "server_step"))
        if only_weighs and (earlier.active(later.start_round) or later.active(earlier.start_round)):
            consequence, fix = f"replaces the weights of {earlier.name}", f"swap them to weigh by {earlier.name}"
            yield Finding(later.name, "weights", consequence, fix)


def _late_schedules(engine: Engine) -> Iterator[Finding]:
    """Schedules of the model or of methods that change only after the last round."""
    rounds, module = engine.settings.rounds, engine.model.module
    owners: list[tuple[str, Any]] = [(type(module).__name__, module), *((method.name, method) for method in engine.methods)]
    for owner, thing in owners:
        for name, schedule in vars(thing).items():
            for boundary in schedule.boundaries if isinstance(schedule, Piecewise) else ():
                if boundary >= rounds:
                    consequence = f"changes after round {boundary}, which a run of {rounds} rounds never reaches"
                    yield Finding(owner, name, consequence, "lower the boundary, or raise trainer.rounds")
