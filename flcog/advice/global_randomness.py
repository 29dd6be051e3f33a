"""Hooks that draw from the global random generators of torch, NumPy or Python, whose numbers depend on more than the run's seed."""

from collections.abc import Iterator
from contextlib import contextmanager

from flcog.advice.finding import Finding
from flcog.advice.trial import Trial
from flcog.core.global_streams import moved, streams
from flcog.method import Method
from flcog.server.engine import Engine

SEEDED = {"server_step": 'draw from cohort.rng("noise")', "draw": "draw from the generator that it is given"}
"""The remedies of hooks that have a generator; others have the hook draw."""


def global_randomness(engine: Engine, trial: Trial) -> Iterator[Finding]:
    """One finding per client hook that draws. A hook that raises an error on random numbers is judged by its draws before the error."""
    for method in engine.methods:
        findings: list[Finding] = []
        try:
            calls = trial.client_hooks(method, trial.context(method))
        except Exception:  # users' hooks may raise anything
            continue
        for hook, call in calls.items():
            with noticing_draws(method, hook, findings):
                try:
                    call()
                except Exception:
                    continue
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
