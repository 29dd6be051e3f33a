"""Select the clients of a round, and let the selection remember the round."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch

from flcog.client.messages import Download
from flcog.core.precision import float64_device
from flcog.core.randomness import fold, make_rng
from flcog.method import (
    AsynchronousRounds,
    AvailabilityModel,
    ClientPool,
    Participants,
    PrivateSum,
    RoundRecord,
    Selection,
    clock_of,
    expected_cohort,
    method_of,
)
from flcog.server.engine import Engine
from flcog.server.privacy import seed_of_cohort
from flcog.server.round_plan import Timing
from flcog.server.state import ServerState
from flcog.wire.envelope import message_bytes
from flcog.wire.ledger import model_bytes


class Start(NamedTuple):
    """The start of one client during an asynchronous round.

    ``busy`` are the clients that train, or have arrived or dropped out in this round.
    """

    number: int
    seconds: float
    busy: Sequence[int]


def select(engine: Engine, server: ServerState, start: Start | None = None) -> Participants:
    """Select the clients of the coming round. In asynchronous rounds these are the clients that start with it.

    ``start`` selects one client for a start during such a round instead.
    """
    asked: list[int] = []

    def ask(clients: Sequence[int]) -> list[float]:
        asked.extend(clients)
        return _losses(engine, server, clients)

    methods, seed = engine.active(server.round), seed_of_cohort(engine)
    method, count = method_of(methods, Selection), min(expected_cohort(methods, engine.cohort_size), engine.num_clients)
    asynchronous, busy = method_of(methods, AsynchronousRounds), list[int]()
    if asynchronous is not None:
        if asynchronous.rate is not None and start is None:
            return Participants([])
        busy = [flight.client for flight in server.traffic.flights] if start is None else list(start.busy)
        count = 1 if start else asynchronous.concurrent(engine.cohort_size) - len(busy)
    keys = () if start is None else (start.number,)
    population = ClientPool(
        round=server.round,
        sizes=engine.roll_call.sizes,
        num_samples=engine.population.num_samples,
        key=fold(seed, server.round, "cohort", *keys),
        availability=_availability(engine, server, server.seconds if start is None else start.seconds, busy),
        sample_ends=lambda: engine.sample_ends,
        ask=ask,
    )
    if method is None:
        return Participants(population.draw(count))
    rng = make_rng(seed, server.round, "selection", method.name, *keys)
    selected = method.select(server.servers[method.name], population, count, rng)
    if not population.available(selected.clients).all():  # a private sum relies on clients' pauses
        raise ValueError(
            f"{method.name}.select must return clients for which population.available is true, and the others are offline, in training or "
            f"resting; got {selected.clients}"
        )
    return selected._replace(asked=asked)


def _availability(
    engine: Engine, server: ServerState, seconds: float, busy: Sequence[int]
) -> Callable[[np.ndarray], np.ndarray] | None:
    """Tells which of some clients can start; None if all of them can."""
    methods = engine.active(server.round)
    if (private := method_of(methods, PrivateSum)) is not None:
        busy = [*busy, *private.resting(server.servers[private.name])]
    present = method_of(methods, AvailabilityModel)
    if present is None:
        return (lambda clients: ~np.isin(clients, busy)) if busy else None
    moment = seconds if clock_of(methods) else server.round * present.seconds_per_round
    return lambda clients: present.available(clients, moment, engine.seed) & ~np.isin(clients, busy)


def charge(engine: Engine, server: ServerState, selected: Participants, trains: Collection[int]) -> None:
    """Count the bytes of the clients that reported their losses for the selection. Clients that train download the model once."""
    if selected.asked:
        method = method_of(engine.active(server.round), Selection)
        assert method is not None
        others = sum(client not in trains for client in selected.asked)
        down = others * model_bytes(server.params, server.buffers)
        server.ledger.add(method.name, up=len(selected.asked) * message_bytes(0.0), down=down)
        own = [0 if client in trains else model_bytes(server.params, server.buffers) for client in selected.asked]
        server.ledger.book(selected.asked, up_bytes=message_bytes(0.0), down_bytes=own)


def remember(
    engine: Engine,
    server: ServerState,
    selected: Participants,
    trained: Sequence[int],
    losses: Mapping[int, float],
    timing: Timing | None = None,
) -> None:
    """Let the selection update its state after a round, before the round's number changes."""
    method = method_of(engine.active(server.round), Selection)
    if method is not None:
        known = [losses[client] for client in trained] if method.reads_losses and losses else []
        sizes = engine.roll_call.sizes[torch.tensor(trained, dtype=torch.int64)].tolist()
        record = RoundRecord(server.round, selected.clients, trained, known, timing.taken() if timing else {}, sizes)
        server.servers[method.name] = method.update(server.servers[method.name], record)
    if (private := method_of(engine.methods, PrivateSum)) is not None:
        server.servers[private.name] = private.remember(server.servers[private.name], selected.clients)


def _losses(engine: Engine, server: ServerState, clients: Sequence[int]) -> list[float]:
    """The loss of the global model on each client's data. The processes share the clients."""
    round, processes = server.round, engine.processes
    received = Download(round, engine.seed, server.params, server.buffers, {}, *engine.local_optimiser(round))
    found = torch.zeros(len(clients), dtype=torch.float64)
    mine = slice(processes.rank, None, processes.count)
    found[mine] = torch.tensor(engine.clients.losses(received, clients[mine]), dtype=torch.float64)
    losses: list[float] = processes.total(found.to(float64_device(processes.device))).tolist()
    return losses
