"""A round of training on the server: select clients, plan, send tasks, train, receive replies, combine them, and step."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from flcog.client.messages import ClientTask, Download
from flcog.core.precision import float64_device
from flcog.core.trees import containers_copied
from flcog.core.types import Params, Slot
from flcog.functional.model_function import without_negative_variances
from flcog.method import (
    OBSERVER_HOOKS,
    AsynchronousRounds,
    Cohort,
    Messages,
    Method,
    Participants,
    PrivateSum,
    SealedSum,
    Stage,
    UploadAggregator,
    UploadChange,
    Uploads,
    method_of,
)
from flcog.method.returned import check_params, check_type, untouched
from flcog.server.aggregate import Aggregate, check_new_model
from flcog.server.clock import asking_seconds, pass_time
from flcog.server.engine import Engine
from flcog.server.flights import arrival_times, fly
from flcog.server.in_flight import Traffic
from flcog.server.privacy import add_noise, pay, public, released
from flcog.server.receive import account, encoders_of, receive
from flcog.server.round_plan import Round, plain_sizes, planned_steps, send_down, tasks_of, weigh
from flcog.server.select import charge, remember, select
from flcog.server.state import ServerState
from flcog.wire.envelope import addable

ServerStep = tuple[Params, Slot, Params]
"""The changed delta, the method's new state and the new buffers."""


def take_step(server: ServerState, method: Method, delta: Params, messages: Messages, cohort: Cohort) -> ServerStep:
    """Run one method's server step on the shared parameters, which ``delta`` names."""
    state, params = containers_copied(server.servers[method.name]), {n: p for n, p in server.params.items() if n in delta}
    with untouched(method, "server_step", server.params, cohort.buffers):
        found = method.server_step(state, dict(params), delta, messages, cohort)
        change, state, *buffers = check_type(method, "server_step", found, tuple, "a tuple of the change and its state")
    check_params(method, "server_step", change, params)
    return change, state, cohort.buffers | dict(*buffers)


CHANGES = UploadAggregator | UploadChange

OnSelected = Callable[[Sequence[int]], None]
"""Called with the clients of a round once they are selected."""


def advance(
    engine: Engine, server: ServerState, directions: bool = False, on_selected: OnSelected = lambda selection: None
) -> dict[str, float]:
    """Run one round of training, from the selection of clients to the new global model, and return the round's figures.

    ``on_selected`` is called with the selected clients before training. ``directions`` adds the cosine between clients' updates.
    """
    # The row of the first round includes the bytes of the exchange before it, so that the rows add up to the total.
    before = server.ledger.totals if server.round else (0, 0)
    engine.progress.begin("planning")
    pay(engine, server)
    selection = select(engine, server)
    on_selected(selection.clients)
    server.rates = engine.group_rates
    round = or_stand_in(engine, server, plan(engine, server, selection))
    losses: Mapping[int, float] = {}
    if round.plans:
        round, aggregate = train(engine, server, round, directions)
        # If the round does not count, clients keep the states with which they began it.
        counts = step(engine, server, round, aggregate)
        engine.clients.commit(round.trained if counts else [])
        losses = dict(zip(aggregate.arrived.clients, aggregate.arrived.loss, strict=True))
        round.cohort.metrics.update(aggregate.figures())
    else:
        round.cohort.metrics["clients/participating"] = 0.0
        if selection.clients:
            warnings.warn(f"round {server.round + 1}: every sampled client dropped out; the model stays as it was", stacklevel=2)
    selected = selection if round.flights is None else round.flights.selected
    remember(engine, server, selected, round.trained, losses, round.timing)
    server.ledger.book(selected.clients, times_selected=1)
    times = pass_time(server, round.methods, round.asking, round.timing)
    server.round, server.steps = server.round + 1, server.steps + sum(round.plans.values())
    return released(engine, server, round.cohort.metrics | times | server.ledger.figures(before))


def join(engine: Engine, server: ServerState) -> None:
    """Let all clients train once more with the last round's optimiser, and keep their new states; the server keeps nothing of it.

    So a client that is new to the run gets the state from which a method makes its own model.
    """
    last = server.copy(max(0, server.round - 1))
    round = plan(engine, last, Participants(list(range(engine.num_clients))))
    rates, optimisation = engine.local_optimiser(last.round, server.rates)
    received = round.received._replace(rates=rates, optimisation=optimisation)
    round, _ = train(engine, last, replace(round, received=received), directions=False)
    engine.clients.commit(round.trained)


def or_stand_in(engine: Engine, server: ServerState, round: Round) -> Round:
    """The round, or a round of noise alone if it has a private sum and no client. The noise of a sealed sum comes from clients."""
    if round.plans or method_of(round.methods, PrivateSum) is None or method_of(round.methods, SealedSum) is not None:
        return round
    plans = {int(engine.roll_call.sizes.argmax()): 1}
    cohort = weigh(engine, server, round.methods, plans, round.selection, round.cohort.metrics)
    return replace(round, plans=plans, cohort=cohort, counts=False)


def plan(engine: Engine, server: ServerState, selection: Participants) -> Round:
    """Plan each client's number of steps and weight, after new clients have sent their first-contact messages."""
    number, methods = server.round, engine.active(server.round)
    plans = planned_steps(engine, methods, number, selection.clients)
    charge(engine, server, selection, plans)
    received, down = send_down(engine, server, methods, list(plans))
    metrics: dict[str, float] = {"round": number + 1}
    if newcomers := server.newcomers(methods, list(plans)):
        server.meet(engine.clients.contact(received._replace(server={}), newcomers))
        if silent := {client for clients in server.newcomers(methods, list(plans)).values() for client in clients}:
            plans = {client: steps for client, steps in plans.items() if client not in silent}
            metrics["clients/lost"] = len(silent)
    cohort = weigh(engine, server, methods, plans, selection, metrics)
    round = Round(number, methods, selection, plans, cohort, received, down, asking_seconds(engine, server, methods, selection))
    if (asynchronous := method_of(methods, AsynchronousRounds)) is not None:
        return _with_arrivals(engine, server, asynchronous, round)
    server.traffic = Traffic()  # nobody waits for clients in flight after the last asynchronous round
    return round


def _with_arrivals(engine: Engine, server: ServerState, method: AsynchronousRounds, round: Round) -> Round:
    """Let the clients of a round start, and plan the round of the next arrivals instead, weighted by their staleness."""
    flights, metrics = fly(engine, server, method, round), round.cohort.metrics
    plans = {flight.client: flight.steps for flight in flights.arrivals}
    staleness = torch.tensor([round.number - flight.round for flight in flights.arrivals], dtype=torch.float64)
    selection = Participants(list(plans), weights=method.discounts(staleness) / method.arrivals(engine.cohort_size))
    metrics["clients/in_flight"] = len(server.traffic.flights)
    if plans:
        metrics |= {"staleness/mean": float(staleness.mean()), "staleness/max": float(staleness.max())}
    cohort, time = weigh(engine, server, round.methods, plans, selection, metrics), arrival_times(flights, server.seconds)
    return replace(round, selection=selection, plans=plans, cohort=cohort, asking=0.0, timing=time, flights=flights)


def ask(engine: Engine, server: ServerState, round: Round) -> list[tuple[Download, list[ClientTask]]]:
    """The broadcasts of the round, each with the tasks of the clients that start from it."""
    flights = round.flights
    # A client's training is a function of the facts at its start, when its staleness is unknown.
    weights = round.cohort.weights.tolist() if flights is None else [flights.weight] * len(round.plans)
    tasks = tasks_of(engine, server, round.methods, round.plans, weights)
    return [(round.received, tasks)] if flights is None else flights.asked(tasks)


def train(engine: Engine, server: ServerState, round: Round, directions: bool) -> tuple[Round, Aggregate]:
    """Train the clients, add up their replies, and count the bytes.

    If a client's update is dropped, the round is run again without it, with new weights, sums and cohort. The other clients repeat
    their work exactly, because random numbers depend only on their keys. The returned round has no lost clients either.
    """
    metrics = round.cohort.metrics
    asked = ask(engine, server, round)
    started = asked[0][1] if round.flights is None else round.flights.tasks
    while True:
        whole = round
        round, aggregate = receive(engine, server, whole, asked, directions)
        arrived = round.plans if round.timing is None else round.timing.finishes
        if len(arrived) < len(whole.plans):
            metrics["clients/lost"] = metrics.get("clients/lost", 0) + len(whole.plans) - len(arrived)
        if not aggregate.dropped:
            break
        metrics["clients/dropped"] = metrics.get("clients/dropped", 0) + len(aggregate.dropped)
        # Late clients train again, because other clients may be late without the dropped ones.
        gone = [client for client in whole.plans if client in aggregate.dropped or client not in arrived]
        round = or_stand_in(engine, server, whole.without(engine, server, gone))
        if not round.plans:
            break
        asked = ask(engine, server, round)
    plain = plain_sizes(server, round.methods, round.received, started)
    down = plain if round.down is None else {sender: sum(sizes.values()) for sender, sizes in round.down.items()}
    account(server, round, down, started, aggregate)
    if encoders_of(round.methods):
        metrics["comm/up_plain_bytes"] = aggregate.plain_bytes
    if round.down is not None:
        metrics["comm/down_plain_bytes"] = sum(plain.values())
    return round, aggregate


def step(engine: Engine, server: ServerState, round: Round, aggregate: Aggregate) -> bool:
    """Let methods turn the mean change of the model into the server's step. Buffers are averaged.

    Returns False if the round does not count, because there are too few uploads, or none with a weight.
    """
    engine.progress.enter("aggregating")
    add_noise(engine, server, aggregate, len(round.trained))
    if aggregate.weight == 0:
        warnings.warn(f"round {round.number + 1}: no client's update counts; the model stays as it was", stacklevel=2)
        return False
    if not aggregate.combine(server.servers, round.cohort):
        return False
    received = server.buffers
    buffers = received | averaged(received, aggregate.mean("buffers"))
    mean = aggregate.mean("delta")
    if round.selection.weights is not None:
        mean = {name: round.cohort.total_weight * value for name, value in mean.items()}
    whole: Params = {n: mean[n].to(p.dtype) if n in mean else torch.zeros_like(p) for n, p in server.params.items()}
    delta = {name: value for name, value in whole.items() if name not in engine.local}
    # Stages step first, because their order is fixed.
    for method in sorted(round.methods, key=lambda method: not isinstance(method, Stage)):
        # Methods that train on the server use this round's statistics.
        cohort = replace(public(engine, round.cohort), buffers=buffers)
        # Their order must not depend on the executor.
        uploads = sorted(aggregate.individual.get(method.name, []), key=lambda upload: upload.client)
        messages = Messages(*aggregate.messages(method.name), uploads)
        if method.individual_uploads and any(map(method.overrides, OBSERVER_HOOKS)):
            server.uploads[method.name] = Uploads(server.params, received, uploads)
        delta, server.servers[method.name], buffers = take_step(server, method, delta, messages, cohort)
    whole |= delta  # clients may share the other parameters in this round
    params = {name: (value + whole[name]).detach() for name, value in server.params.items()}
    stepping = [method.name for method in round.methods if method.overrides("server_step") or isinstance(method, CHANGES)]
    if stepping or engine.processes.replicas > 1:
        # Every process computes the server's step. Kernels of an accelerator may differ in the last digits, and so do the buffers of
        # processes that train a client together; the processes would diverge.
        params, buffers, server.servers = engine.processes.share_first((params, buffers, server.servers))
        check_new_model(params, stepping, round.number)
    server.params, server.buffers = params, buffers
    return True


def averaged(buffers: Params, changes: Params) -> Params:
    """The buffers after their clients' mean changes.

    Whole numbers are rounded. A boolean becomes true if clients with more than half of the weight hold true. A rule in place of the
    mean may leave the range of short integers, which would wrap around.
    """
    return without_negative_variances(
        {
            name: like + change if (like := buffers[name]).is_floating_point() else _whole(like, change)
            for name, change in changes.items()
        }
    )


def _whole(like: Tensor, change: Tensor) -> Tensor:
    """Whole numbers or booleans after a mean change, in float64, because float32 has gaps between whole numbers above 2^24."""
    device = float64_device(like.device)
    whole = (addable(like).to(device) + change.to(device, torch.float64)).round().long().to(like.device)
    if like.dtype == torch.bool:
        return whole.clamp(0, 1).bool()
    if like.element_size() < whole.element_size():
        whole = whole.clamp(torch.iinfo(like.dtype).min, torch.iinfo(like.dtype).max)
    return whole.to(like.dtype)
