"""Simulated time: the seconds that the clients of a round take, and the end of the round."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from flcog.client.messages import ClientReply, ClientTask
from flcog.core.randomness import fold, fold_each
from flcog.method import AvailabilityModel, Clock, Cutoff, Method, Participants, Work, clock_of, method_of
from flcog.server.engine import Engine
from flcog.server.round_plan import Round, Timing, plain_sizes
from flcog.server.state import ServerState
from flcog.wire.envelope import message_bytes
from flcog.wire.ledger import model_bytes

FORWARD = 1 / 3
"""A forward pass over a batch, in local steps: the backward pass of a step takes about twice as long."""


def uploaded(reply: ClientReply) -> dict[int, int]:
    """The bytes that each client of a reply has sent."""
    total = sum(reply.manifest.sizes.values())
    return {client: total - masked for client, masked in zip(reply.clients, reply.masked_bytes, strict=True)}


def timing(
    engine: Engine, server: ServerState, round: Round, tasks: Sequence[ClientTask], up: Mapping[int, int]
) -> Timing | None:
    """The time of a round whose clients start with it; None without a clock.

    Clients without an entry in ``up``, the bytes that each client sends, have sent no reply, and nobody waits for them.
    """
    if clock_of(round.methods) is None:
        return None
    arrived = [task for task in tasks if task.client in up]
    clients = [task.client for task in arrived]
    seconds = durations(engine, server, round, arrived, [up[client] for client in clients])
    finishes = dict(zip(clients, seconds, strict=True))
    found = Timing(finishes, clients, max(seconds, default=0.0))
    draws = fold_each(fold(engine.seed, "ties", round.number), clients)
    shuffled = {clients[k]: seconds[k] for k in np.argsort(draws)}  # else the first numbers would win every tie
    for method in round.methods if clients else ():
        if isinstance(method, Cutoff):
            closed = method.close(shuffled, engine.cohort_size)
            kept = [client for client in found.clients if client in closed.clients]
            found = replace(found, clients=kept, seconds=min(found.seconds, closed.seconds))
    return found


def durations(engine: Engine, server: ServerState, round: Round, tasks: Sequence[ClientTask], up: Sequence[int]) -> list[float]:
    """The seconds that each client needs for its task."""
    clock = clock_of(round.methods)
    assert clock is not None
    had, model = set(round.selection.asked), model_bytes(round.received.params, round.received.buffers)
    # A client that was asked for its loss has the model.
    sizes = zip(tasks, downloaded(server, round, tasks), strict=True)
    downloads = [max(0.0, float(size - model * (task.client in had))) for task, size in sizes]
    return _seconds(clock, engine, [task.client for task in tasks], [task.num_steps for task in tasks], downloads, up)


def asking_seconds(engine: Engine, server: ServerState, methods: Sequence[Method], selected: Participants) -> float:
    """The time until all clients that the selection asks have received the model and reported their losses."""
    clock, clients = clock_of(methods), selected.asked
    if clock is None or not clients:
        return 0.0
    batching = engine.batching
    steps = [FORWARD * batching.batches_per_epoch(engine.size(client)) / batching.accumulate for client in clients]
    down, up = model_bytes(server.params, server.buffers), message_bytes(0.0)
    return max(_seconds(clock, engine, clients, steps, [down] * len(clients), [up] * len(clients)))


def pass_time(server: ServerState, methods: Sequence[Method], asking: float, found: Timing | None) -> dict[str, float]:
    """Add a round's time to the run's, and return the round's columns; empty without a clock."""
    if clock_of(methods) is None:
        return {}
    present = method_of(methods, AvailabilityModel)
    # Without waiting, a round without available clients would be repeated at the same moment for ever.
    waiting = present.seconds_per_round if present is not None and found is None else 0.0
    found = found or Timing({}, (), 0.0)
    server.seconds = server.seconds + asking + waiting + found.seconds if found.end is None else found.end
    late = {"clients/late": float(found.late)} if any(isinstance(method, Cutoff) for method in methods) else {}
    return {"time/simulated": server.seconds} | found.figures() | late


def downloaded(server: ServerState, round: Round, tasks: Sequence[ClientTask]) -> list[int]:
    """The bytes that each client downloads with its task."""
    received = round.received
    if round.down is not None:
        # A round of noise alone has a client that has been sent nothing.
        return [sum(each.get(task.client, 0) for each in round.down.values()) for task in tasks]
    if any(task.masks or task.own for task in tasks):
        return [sum(plain_sizes(server, round.methods, received, [task]).values()) for task in tasks]
    return [sum(plain_sizes(server, round.methods, received, tasks[:1]).values())] * len(tasks)


def _seconds(
    clock: Clock, engine: Engine, clients: Sequence[int], steps: Sequence[float], down: Sequence[float], up: Sequence[float]
) -> list[float]:
    numbers = (np.asarray(values, dtype=np.float64) for values in (steps, down, up))
    seconds: list[float] = clock.seconds(Work(np.asarray(clients, dtype=np.int64), *numbers), engine.seed).tolist()
    return seconds
