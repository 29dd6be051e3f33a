"""Asynchronous rounds: selected clients start, and the next arrivals are the round."""

import itertools
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from math import ceil

from flcog.client.messages import ClientTask, Download
from flcog.method import AsynchronousRounds, Participants, StepClock, clock_of
from flcog.server.clock import asking_seconds, durations
from flcog.server.engine import Engine
from flcog.server.in_flight import Flight, Flights, Traffic, UploadSize
from flcog.server.round_plan import Round, Timing, planned_steps, tasks_of
from flcog.server.select import Start, charge, select
from flcog.server.state import ServerState
from flcog.wire.ledger import masked_bytes


def arrival_times(flights: Flights, now: float) -> Timing | None:
    """The time of a round that begins now; None without arrivals."""
    if not flights.arrivals:
        return None
    finishes, starts = ({each.client: getattr(each, end) - now for each in flights.arrivals} for end in ("until", "since"))
    end = flights.arrivals[-1].until
    return Timing(finishes, list(finishes), end - now, starts, end)


def fly(engine: Engine, server: ServerState, method: AsynchronousRounds, round: Round) -> Flights:
    """Let the round's clients start, and wait for the next arrivals, which leave the traffic."""
    if method.rate is None:
        tasks, flights = _depart(engine, server, round, server.seconds + round.asking)
        flights, selected = [*server.traffic.flights, *flights], round.selection
    else:
        selected, tasks, flights = _start_at_a_rate(engine, server, method, method.rate, round)
    broadcasts = {**server.traffic.broadcasts, round.number: round.received}
    flights.sort(key=lambda flight: flight.until)
    count = method.arrivals(engine.cohort_size)
    arrivals, rest = flights[:count], flights[count:]
    used = {flight.round for flight in rest}
    server.traffic = Traffic(
        rest, {number: broadcast for number, broadcast in broadcasts.items() if number in used}, server.traffic.upload
    )
    return Flights(selected, tasks, arrivals, {flight.client: broadcasts[flight.round] for flight in arrivals}, 1 / count)


def _depart(engine: Engine, server: ServerState, round: Round, moment: float) -> tuple[list[ClientTask], list[Flight]]:
    """The tasks and flights of the round's clients, which start at this moment."""
    tasks = tasks_of(engine, server, round.methods, round.plans, dict.fromkeys(round.plans, 0.0).values())
    times = durations(engine, server, round, tasks, _upload_bytes(engine, server, round, tasks))
    return tasks, [
        Flight(task.client, round.number, task.num_steps, moment, moment + time) for task, time in zip(tasks, times, strict=True)
    ]


def _start_at_a_rate(
    engine: Engine, server: ServerState, method: AsynchronousRounds, rate: float, round: Round
) -> tuple[Participants, list[ClientTask], list[Flight]]:
    """Start one client after another at a constant rate, if a place is free, until enough clients have arrived.

    A client is selected once in a round, also if it drops out. If no client is available and none trains, the round has fewer arrivals.
    """
    most, count = (of(engine.cohort_size) for of in (method.concurrent, method.arrivals))
    flights, tasks, chosen = list(server.traffic.flights), list[ClientTask](), Participants([])
    number = first_start(server.seconds, rate)
    while True:
        moment, ends = number / rate, sorted(flight.until for flight in flights)
        if len(ends) >= count and ends[count - 1] <= moment:
            return chosen, tasks, flights
        training = [end for end in ends if end > moment]
        if len(training) >= most:
            number = first_start(training[0], rate)
            continue
        busy = {*chosen.clients, *(flight.client for flight in flights)}
        if len(busy) == engine.num_clients:
            return chosen, tasks, flights
        selected = select(engine, server, Start(number, moment, sorted(busy)))
        if not selected.clients and not training:
            return chosen, tasks, flights
        one = replace(round, selection=selected, plans=planned_steps(engine, round.methods, round.number, selected.clients))
        charge(engine, server, selected, one.plans)
        new = _depart(engine, server, one, moment + asking_seconds(engine, server, round.methods, selected))
        tasks, flights = tasks + new[0], flights + new[1]
        chosen = chosen._replace(clients=[*chosen.clients, *selected.clients], asked=[*chosen.asked, *selected.asked])
        number += 1


def first_start(seconds: float, rate: float) -> int:
    """The number of the first start that is not before this time, if start i is at the time i / rate.

    >>> first_start(0.0, rate=0.3), first_start(10.0, rate=0.3), first_start(5 / 0.3, rate=0.3)
    (0, 3, 5)
    """
    number = max(0, ceil(seconds * rate) - 1)
    while number / rate < seconds:
        number += 1
    return number


def _upload_bytes(engine: Engine, server: ServerState, round: Round, tasks: Sequence[ClientTask]) -> list[int]:
    """The bytes that these clients will send. Nobody asks for them if only steps take time."""
    if not tasks or isinstance(clock_of(round.methods), StepClock):
        return [0] * len(tasks)
    if server.traffic.upload is None:
        server.traffic = replace(server.traffic, upload=_size_of_an_upload(engine, round.received, tasks[0]))
    assert server.traffic.upload is not None
    total, params = server.traffic.upload
    return [total - masked_bytes(task.masks, params) for task in tasks]


def _size_of_an_upload(engine: Engine, received: Download, task: ClientTask) -> UploadSize:
    """Let a client train for one step, and measure its upload. All uploads of a run have the same size before masks."""
    mine = [task._replace(num_steps=1)] if engine.processes.is_first else []
    with closing(engine.clients.train(received, mine)) as replies:
        found = [UploadSize(sum(reply.manifest.sizes.values()), reply.manifest.params) for reply in replies]
    size: UploadSize
    (size,) = itertools.chain(*engine.processes.gather(found))
    return size
