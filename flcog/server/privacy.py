"""The server's part of a private sum: the budget, secret cohorts, noise after the sums, and columns that stay secret."""

import secrets
import warnings
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from flcog.core.randomness import make_rng, secret_normal
from flcog.core.types import Slot
from flcog.method import Cohort, Normal, Note, PrivateSum, SealedSum, Training, Withholding, method_of
from flcog.server.aggregate import Aggregate
from flcog.server.engine import Engine
from flcog.server.state import ServerState


class BudgetSpent(ValueError):
    """Another round would spend more privacy than its budget allows."""


def begin(engine: Engine, server: ServerState, already_paid: float = 0) -> None:
    """Fix the scale of the noise before the next round, and describe the guarantee in the run's summary.

    ``already_paid`` rounds are more than the checkpoint's if the run paid for rounds after the checkpoint was written.
    """
    private = method_of(engine.methods, PrivateSum)
    if private is None:
        return
    training = Training(engine.num_clients, engine.cohort_size, engine.settings.rounds, engine.methods)
    private.check(training)
    state = private.begin(server.servers[private.name], training)
    if already_paid > private.paid(state):
        paid = private.pay(state, already_paid, repeated=True)
        if paid is None:
            raise BudgetSpent(
                f"{already_paid:g} rounds were paid for, which exceeds the privacy budget of {private.name}: raise it, or start a new run"
            )
        state = paid
    server.servers[private.name] = state
    text = f"{private.sentence(state, training, server.round)}; clients' losses and scores, bytes and times are withheld"
    engine.notes.add(Note("privacy", text))
    if not private.secret:
        text = f"{private.name} draws cohorts and noise from the seed, which everybody can repeat: it protects nothing"
        engine.notes.add(Note("warning", text))


def affordable(engine: Engine, server: ServerState) -> bool:
    """Whether the budget allows another round."""
    private = method_of(engine.methods, PrivateSum)
    return private is None or _after_another_round(private, server) is not None


def pay(engine: Engine, server: ServerState) -> None:
    """Pay for the coming round, before anything of it is drawn or released."""
    private = method_of(engine.methods, PrivateSum)
    if private is None:
        return
    state = _after_another_round(private, server)
    if state is None:
        raise BudgetSpent(
            f"round {server.round + 1} would exceed the privacy budget of {private.name}: raise it, or train fewer rounds"
        )
    server.servers[private.name] = state


def _after_another_round(private: PrivateSum, server: ServerState) -> Slot | None:
    state = server.servers[private.name]
    return private.pay(state, private.paid(state) + 1)


def pay_for_arrived(engine: Engine, server: ServerState, arrived: int) -> bool:
    """Pay the difference if a sealed sum has the noise of fewer or more clients than expected.

    Returns:
        False if the budget does not allow it, so that nobody may read the sum.
    """
    private = method_of(engine.methods, PrivateSum)
    if private is None or not arrived:
        return True
    state = server.servers[private.name]
    paid = private.pay(state, private.paid(state) - 1 + private.price(state, arrived))
    if paid is None:
        text = f"round {server.round + 1}: the sum of {arrived} clients stays sealed: their noise is too small for the privacy budget"
        warnings.warn(text, stacklevel=2)
        return False
    server.servers[private.name] = paid
    return True


def seed_of_cohort(engine: Engine) -> int:
    """The seed of the coming round's selection: the run's, or the system's entropy, the same on all processes."""
    private = method_of(engine.methods, PrivateSum)
    if private is None or not private.secret:
        return engine.seed
    return int(engine.processes.agree(secrets.randbits(63)))


def add_noise(engine: Engine, server: ServerState, aggregate: Aggregate, arrived: int) -> None:
    """Replace the sums of a round by noisy sums, the same on all processes, if the run has a private sum."""
    private = method_of(engine.methods, PrivateSum)
    if private is None:
        return
    if method_of(engine.methods, SealedSum) is not None:  # clients have added the noise
        if aggregate.sums is not None:
            aggregate.replace(aggregate.total)
        return
    if aggregate.sums is None:
        raise ValueError(
            f"no client has replied in round {server.round + 1}, so that the shapes of its noise are unknown: start it again"
        )
    normal: Normal = secret_normal
    if not private.secret:
        rng = make_rng(engine.seed, server.round, "noise", private.name)
        normal = partial(torch.randn, generator=rng, dtype=torch.float64)
    state = server.servers[private.name]
    total = aggregate.total
    floats = {name: value for name, value in total.buffers.items() if server.buffers[name].is_floating_point()}
    noisy, server.servers[private.name] = private.noisy(state, total._replace(buffers=floats), arrived, normal)
    noisy = noisy._replace(buffers={name: noisy.buffers.get(name, value) for name, value in total.buffers.items()})
    aggregate.replace(engine.processes.share_first(noisy))
    server.servers[private.name] = engine.processes.share_first(server.servers[private.name])


def public(engine: Engine, cohort: Cohort) -> Cohort:
    """The cohort as methods' server steps see it: without its clients if the run has a private sum."""
    if method_of(engine.methods, PrivateSum) is None:
        return cohort
    nobody = torch.empty(0, dtype=torch.float64)
    return replace(cohort, clients=[], num_samples=nobody, weights=nobody)


def released(engine: Engine, server: ServerState, metrics: dict[str, float]) -> dict[str, float]:
    """The columns that no method withholds, with those of the private sum."""
    metrics = dict(metrics)
    withhold(engine, metrics)
    private = method_of(engine.methods, PrivateSum)
    return metrics if private is None else metrics | private.figures(server.servers[private.name])


def withhold(engine: Engine, metrics: dict[str, Any]) -> None:
    """Remove the columns that a method withholds."""
    for method in engine.methods:
        if isinstance(method, Withholding):
            for column in [name for name in metrics if method.withholds(_source(engine, name))]:
                del metrics[column]


def _source(engine: Engine, column: str) -> str:
    """The column, marked if its set is not the server's own but consists of samples that clients hold out."""
    return f"clients_{column}" if column.startswith("val/") and engine.central["val"] is None else column
