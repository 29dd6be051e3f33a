"""One round of training: sampling, plans, aggregation weights, the clients' training, and the server's step."""

import warnings
from collections.abc import Callable, Sequence
from contextlib import closing

import numpy as np
import torch
from torch.utils import _pytree as pytree

from flcog.apply import apply_of
from flcog.core.copies import handed_over
from flcog.core.ledger import Ledger, model_bytes
from flcog.core.randomness import fold, make_rng, sample_without_replacement
from flcog.core.types import Params, Slot
from flcog.engine.aggregation import Aggregate
from flcog.engine.batching import ClientWork, make_work
from flcog.engine.executors.base import Assignment, longest_first
from flcog.engine.program import Program, num_bytes
from flcog.engine.server_step import check_model, take_server_step
from flcog.engine.setup import Engine
from flcog.engine.sharing import share_out
from flcog.engine.state import ClientStates, ServerState
from flcog.method import OBSERVER_HOOKS, Cohort, Messages, Method, Plan, Uploads

Plans = dict[int, int]
"""The clients that take part, with their numbers of local steps."""


def sample(engine: Engine, round: int) -> list[int]:
    """The clients of a round, counted from 0."""
    return sample_without_replacement(engine.federation.num_clients, engine.cohort_size, fold(engine.seed, round, "cohort"))


def advance(
    engine: Engine, server: ServerState, clients: ClientStates, sampled: list[int], directions: bool = False
) -> dict[str, float]:
    """One round of training: from the sampled clients to the new global model. Returns the round's figures.

    Args:
        engine: what is fixed before round 1.
        server, clients: what the round changes.
        sampled: who is asked to take part.
        directions: whether the figures shall hold the cosine between clients' updates.
    """
    # What was exchanged before the first round is in its row, so that rows add up to the total.
    before = server.ledger.copy() if server.round else Ledger()
    methods = engine.active(server.round)
    metrics: dict[str, float] = {"round": server.round + 1}
    plans = plan(engine, server, methods, sampled)
    if plans:
        cohort, aggregate = train(engine, server, clients, methods, plans, metrics, directions)
        step(engine, server, methods, cohort, aggregate)
        metrics |= aggregate.figures()
    else:
        warnings.warn(f"round {server.round + 1}: every sampled client dropped out; the model stays as it was", stacklevel=2)
    server.round += 1
    return metrics | server.ledger.figures(before)


def plan(engine: Engine, server: ServerState, methods: Sequence[Method], sampled: Sequence[int]) -> Plans:
    """Who takes part with how many steps, and what newcomers report."""
    round, plans = server.round, {}
    for client in sampled:
        view = engine.view(client, round)
        planned: Plan | None = Plan(engine.batching.num_steps(view.num_samples))
        for method in methods:
            if planned is not None and method.overrides("plan"):
                planned = method.plan(planned, view, make_rng(engine.seed, round, client, "plan", method.name))
        if planned is not None:
            if planned.num_steps < 1:
                raise ValueError(f"a plan has at least one local step; client {client} got {planned.num_steps}")
            plans[client] = planned.num_steps
    for method in methods:
        if method.overrides("report"):
            for client in plans:
                server.ask_report(method, engine.view(client, round))
    return plans


def weigh(engine: Engine, server: ServerState, methods: Sequence[Method], plans: Plans, metrics: dict[str, float]) -> Cohort:
    """The cohort with its aggregation weights: shares of samples, then as each method changes them."""
    ids, offsets = np.array(list(plans)), engine.federation.partition.offsets
    num_samples = torch.from_numpy(offsets[ids + 1] - offsets[ids]).double()
    optimisation = engine.optimisation(server.round)
    cohort = Cohort(
        round=server.round,
        clients=list(plans),
        num_clients=engine.federation.num_clients,
        num_samples=num_samples,
        weights=num_samples / num_samples.sum(),
        apply=apply_of(engine.model, server.buffers),
        buffers=server.buffers,
        optimisation=optimisation,
        metrics=metrics,
        seed=engine.seed,
    )
    for method in methods:
        if method.overrides("weights"):
            cohort.weights = _reweighed(method, server.reports_to(method, plans), cohort)
    return cohort


def _reweighed(method: Method, reports: Sequence[object], cohort: Cohort) -> torch.Tensor:
    """The weights as one method changes them."""
    proposed = method.weights(cohort.weights, reports, cohort).double()
    if proposed.shape != cohort.weights.shape or not torch.isfinite(proposed).all() or (proposed < 0).any():
        raise ValueError(f"{method.name}.weights must return {len(cohort.clients)} finite weights of at least 0; got {proposed}")
    if proposed.sum() == 0:
        warnings.warn(
            f"{method.name} gave every client of round {cohort.round + 1} weight 0: keeping the weights before it", stacklevel=2
        )
        return cohort.weights
    # Dividing by a sum of 1 up to rounding would move last digits.
    return cohort.weights if torch.equal(proposed, cohort.weights) else proposed / proposed.sum()


def train(
    engine: Engine,
    server: ServerState,
    clients: ClientStates,
    methods: Sequence[Method],
    plans: Plans,
    metrics: dict[str, float],
    directions: bool,
) -> tuple[Cohort, Aggregate]:
    """Train the clients of a round, count the bytes they send and receive, and keep their new states.

    Where a client's update is dropped, all is run again without it. Weights, sums and what the server knows of the cohort are then
    what they were had it stayed away, and as draws are keyed the other clients do the same, to the last bit.
    """
    num_clients, plans = len(plans), dict(plans)
    while True:
        cohort = weigh(engine, server, methods, plans, metrics)
        aggregate = collect(engine, server, clients, methods, cohort, plans, directions)
        if not aggregate.dropped:
            break
        metrics["clients/dropped"] = metrics.get("clients/dropped", 0) + len(aggregate.dropped)
        plans = {client: steps for client, steps in plans.items() if client not in aggregate.dropped}
        if not plans:
            break
    count_bytes(server, methods, num_clients, aggregate)
    for client, slots in aggregate.slots.items():
        new = {method.name: slot for method, slot in zip(methods, slots, strict=True) if pytree.tree_leaves(slot)}
        if new:
            clients.put(client, clients.get(client) | new)
    return cohort, aggregate


def collect(
    engine: Engine,
    server: ServerState,
    clients: ClientStates,
    methods: Sequence[Method],
    cohort: Cohort,
    plans: Plans,
    directions: bool = False,
) -> Aggregate:
    """Broadcast, run this process's share of the clients, and add up over processes: what the server receives."""
    shares = share_out(engine, clients, plans)
    assignment = assign(engine, server, clients, methods, cohort, plans, shares[engine.processes.rank])
    aggregate = Aggregate(methods, directions, engine.settings.on_bad_update, engine.processes.device)
    aggregate.down_bytes = [sum(map(num_bytes, pytree.tree_leaves(slot))) for slot in assignment.program.broadcasts]
    with closing(engine.executor.run(assignment)) as results:
        for result in results:
            aggregate.add(result, server.buffers, cohort.round)
    aggregate.reduce(engine.processes, cohort.clients, somebody_idle=not all(shares))
    return aggregate


def assign(
    engine: Engine,
    server: ServerState,
    clients: ClientStates,
    methods: Sequence[Method],
    cohort: Cohort,
    plans: Plans,
    mine: Sequence[int],
) -> Assignment:
    """What the executor needs to run the clients at these positions of the cohort."""
    chosen = [cohort.clients[i] for i in mine]
    works = make_work(
        engine.federation,
        engine.batching,
        chosen,
        [plans[client] for client in chosen],
        cohort.weights[list(mine)].tolist(),
        engine.seed,
        cohort.round,
    )
    broadcasts = [method.broadcast(server.servers[method.name]) for method in methods]
    give_slots(engine, server, clients, methods, works, cohort.round)
    program = Program(engine.model, methods, broadcasts, server.params, server.buffers, cohort.optimisation)
    return Assignment(program, works, engine.reader, engine.rates(cohort.round), engine.seed, cohort.round)


def give_slots(
    engine: Engine,
    server: ServerState,
    clients: ClientStates,
    methods: Sequence[Method],
    works: Sequence[ClientWork],
    round: int,
) -> None:
    """Each client's state (made when first needed) and this round's draws."""
    if not any(method.overrides("init_client") or method.overrides("draw") for method in methods):
        for work in works:
            work.hand_slots = work.hand_draws = lambda: [{}] * len(methods)
        return
    clients.fetch([work.client for work in works])
    slots: dict[int, list[Slot]] = {work.client: [] for work in works}
    draws: dict[int, list[Slot]] = {work.client: [] for work in works}
    for work in works:
        stored, view = clients.get(work.client), engine.view(work.client, round)
        for method in methods:
            slot = stored.get(method.name)
            slots[work.client].append(method.init_client(server.params, server.buffers) if slot is None else slot)
            rng = make_rng(engine.seed, round, work.client, "draw", method.name)
            draws[work.client].append(method.draw(rng, view) if method.overrides("draw") else {})
    in_order = longest_first(works)  # as executors take them
    for work, hand_slots, hand_draws in zip(
        in_order,
        _handed_over(engine, [slots[work.client] for work in in_order]),
        _handed_over(engine, [draws[work.client] for work in in_order]),
        strict=True,
    ):
        work.hand_slots, work.hand_draws = hand_slots, hand_draws


def _handed_over(engine: Engine, trees: list[list[Slot]]) -> list[Callable[[], list[Slot]]]:
    """What gives each tree on the device, where it may arrive once it is needed."""
    lane = engine.reader.lane
    return handed_over(trees if lane is not None else engine.to_device(trees), lane)


def count_bytes(server: ServerState, methods: Sequence[Method], num_clients: int, aggregate: Aggregate) -> None:
    """Count in the ledger what was sent down to so many clients, and up by those that were not dropped."""
    for method, count in zip(methods, aggregate.down_bytes, strict=True):
        server.ledger.add(method.name, down=num_clients * count)
    if not all(method.communicates for method in methods):
        return
    # Parameters that clients keep to themselves are not sent up, and after the first round not sent down either.
    sent = {name: server.params[name] for name in aggregate.sent} if server.round else {}
    model = num_clients * model_bytes(sent or server.params, server.buffers)
    server.ledger.add("model", up=-aggregate.left_out, down=model - aggregate.left_out)
    for name, count in zip(["model", *(method.name for method in methods)], aggregate.up_bytes, strict=True):
        server.ledger.add(name, up=count)


def step(engine: Engine, server: ServerState, methods: Sequence[Method], cohort: Cohort, aggregate: Aggregate) -> None:
    """Methods turn the mean delta into the server's step; buffers are plainly averaged."""
    if aggregate.weight == 0:
        warnings.warn(f"round {cohort.round + 1}: no client's update counts; the model stays as it was", stacklevel=2)
        return
    # First, so that methods which go on training at the server do so with this round's statistics.
    for name, change in aggregate.buffers().items():
        value = server.buffers[name] + change
        floating = server.buffers[name].is_floating_point()
        server.buffers[name] = value if floating else value.round().to(server.buffers[name].dtype)
    mean = aggregate.delta()
    delta: Params = {n: mean[n].to(p.dtype) if n in mean else torch.zeros_like(p) for n, p in server.params.items()}
    for i, method in enumerate(methods):
        individual = sorted(aggregate.individual[i], key=lambda upload: upload.client)  # whatever the executor's order
        messages = Messages(*aggregate.messages(i), individual)
        if method.individual_uploads and any(map(method.overrides, OBSERVER_HOOKS)):
            server.uploads[method.name] = Uploads(server.params, cohort.buffers, individual)
        delta, server.servers[method.name] = take_server_step(method, methods, server, delta, messages, cohort, aggregate.sent)
    params = {name: (value + delta[name]).detach() for name, value in server.params.items()}
    stepping = [method.name for method in methods if method.overrides("server_step")]
    if stepping:
        # Every process takes the server's step. Where it trains there, an accelerator's kernels may differ in the last digits, and
        # processes would drift apart.
        params, server.servers = engine.processes.share_first((params, server.servers))
        check_model(params, stepping, cohort.round)
    server.params = params
