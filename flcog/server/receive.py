"""Send tasks to this process's clients, decode their envelopes, add them up, and count their bytes."""

import secrets
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from itertools import chain

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from flcog.client.messages import ClientReply, ClientTask, Download
from flcog.core.trees import distinct, map_once
from flcog.method import (
    AsynchronousRounds,
    Cutoff,
    GlobalModel,
    Method,
    PrivateSum,
    RoundKeys,
    SealedSum,
    Stage,
    clock_of,
    method_of,
)
from flcog.method.method import with_measures
from flcog.server.aggregate import Aggregate
from flcog.server.clock import downloaded, timing, uploaded
from flcog.server.engine import Engine
from flcog.server.privacy import pay_for_arrived
from flcog.server.round_plan import Round
from flcog.server.sealed import SealedAggregate
from flcog.server.state import ServerState
from flcog.wire.envelope import Envelope

Asked = Sequence[tuple[Download, Sequence[ClientTask]]]
"""Broadcasts, each with the tasks of the clients that start from it."""


def receive(engine: Engine, server: ServerState, round: Round, asked: Asked, directions: bool = False) -> tuple[Round, Aggregate]:
    """Send this process's clients their tasks, and add up the replies of all processes.

    If replies may be lost, all replies are kept until the last has arrived, because the weights of the other clients depend on
    the clients that are missing.

    Returns the round with the clients whose replies count and its time, and the sums over their replies.
    """
    processes, shares = engine.processes, share_out(engine, round.plans)
    by_client = {task.client: (received, task) for received, tasks in asked for task in tasks}
    tasks = [by_client[client][1] for client in round.plans]
    mine, somebody_idle = [tasks[i] for i in shares[processes.rank]], not all(shares)
    clocked = clock_of(round.methods) is not None and round.timing is None
    stale = method_of(round.methods, AsynchronousRounds) is not None
    may_be_lost = engine.clients.may_be_lost or method_of(round.methods, Cutoff) is not None
    asked = _with_keys(engine, round, asked)
    engine.progress.begin("training", len(round.plans))
    missing = {task.client for task in mine}
    with ExitStack() as stack:
        replies: Iterable[ClientReply] = _replies(engine, asked, missing, len(round.plans), stack)
        if may_be_lost:
            round, replies, somebody_idle = arrived(engine, server, round, tasks, list(replies))
            mine = [task for task in mine if task.client in round.plans]
        if engine.clients.here is None:  # executors in this process always return clients in the same order
            replies = in_order(replies, mine)
        aggregate, private = _aggregate(engine, round, asked[0][0], directions), method_of(round.methods, PrivateSum)
        encoders = encoders_of(round.methods)
        for reply in replies:
            received, _ = by_client[reply.clients[0]]
            reply = decoded(reply, round.methods, encoders, received, private)
            if not round.counts:  # the shapes count alone
                reply = reply._replace(envelope=pytree.tree_map(torch.zeros_like, reply.envelope))
            # Arrivals that began at one old model would each add the same change of the buffers, so their buffers are averaged themselves.
            aggregate.add(reply, server.buffers if stale else received.buffers, received.round)
    if missing and not may_be_lost:
        raise ValueError(
            f"{len(missing)} of {len(mine)} clients have sent no reply to their task in round {round.number + 1}; the first is client "
            f"{min(missing)}. A run continues without lost replies only beside a flcog.method.Cutoff"
        )
    if isinstance(aggregate, SealedAggregate) and not pay_for_arrived(engine, server, len(round.plans)):
        aggregate.discard()
    aggregate.reduce(processes, somebody_idle, logs=engine.evaluator.own.logs)
    if clocked and not may_be_lost and not aggregate.dropped:
        sizes = dict(zip(aggregate.arrived.clients, aggregate.arrived.up_bytes, strict=True))
        round = replace(round, timing=timing(engine, server, round, tasks, sizes))
    return round, aggregate


def share_out(engine: Engine, plans: Mapping[int, int]) -> list[list[int]]:
    """Assign each client to the least busy process, longest first, and return each process's positions in the cohort.

    A client with a state stays on the process that first trained it. All processes compute the same assignment.
    """
    count, cohort, steps = engine.processes.count, list(plans), list(plans.values())
    if count == 1:
        return [list(range(len(cohort)))]
    shares: list[list[int]] = [[] for _ in range(count)]
    load = [0] * count
    stateful = engine.clients.stateful
    owner = engine.clients.store.owner if stateful else {}
    for i in sorted(range(len(cohort)), key=lambda i: (cohort[i] not in owner, -steps[i], cohort[i])):
        rank = owner.get(cohort[i])
        if rank is None:
            rank = min(range(count), key=load.__getitem__)
            if stateful:
                owner[cohort[i]] = rank
        shares[rank].append(i)
        load[rank] += steps[i]
    return [sorted(share) for share in shares]


def _with_keys(engine: Engine, round: Round, asked: Asked) -> Asked:
    """The broadcasts, with the keys of the round if its uploads are sealed, the same in all processes."""
    if method_of(round.methods, SealedSum) is None:
        return asked
    keys = RoundKeys(engine.processes.agree(secrets.token_hex(32)), list(round.plans))
    return [(received._replace(keys=keys), tasks) for received, tasks in asked]


def _aggregate(engine: Engine, round: Round, received: Download, directions: bool) -> Aggregate:
    """The empty sums of a round; of sealed uploads if the broadcast has keys."""
    # With a private sum, an error would tell of one client.
    on_bad_update = "drop" if method_of(round.methods, PrivateSum) else engine.settings.on_bad_update
    if received.keys is None:
        return Aggregate(round.methods, round.cohort, directions, on_bad_update, engine.processes.device)
    return SealedAggregate(received, round.methods, round.cohort, on_bad_update, engine.processes.device)


def _replies(engine: Engine, asked: Asked, missing: set[int], cohort: int, stack: ExitStack) -> Iterator[ClientReply]:
    """Train this process's clients, one broadcast after another, and leave those without a reply in ``missing``.

    Every process takes part for every broadcast. ``stack`` ends the training of clients whose replies nobody takes.
    """
    share = cohort / max(len(missing), 1)  # other processes are about as far as this one

    def arrive(reply: ClientReply) -> ClientReply:
        missing.difference_update(reply.clients)
        engine.progress.count(len(reply.clients) * share)
        return reply

    parts = [engine.clients.train(received, [task for task in tasks if task.client in missing]) for received, tasks in asked]
    return map(arrive, chain.from_iterable([stack.enter_context(closing(part)) for part in parts]))


def arrived(
    engine: Engine, server: ServerState, round: Round, tasks: Sequence[ClientTask], replies: Sequence[ClientReply]
) -> tuple[Round, list[ClientReply], bool]:
    """Plan a round again without lost and late clients, once all replies of this process have arrived.

    Returns the round with its time, the replies that count, and whether some process has none of them.
    """
    parts = engine.processes.gather({client: size for reply in replies for client, size in uploaded(reply).items()})
    sizes = {client: size for part in parts for client, size in part.items()}
    time = timing(engine, server, round, tasks, sizes)
    counting = set(sizes if time is None else time.clients)
    lost = [client for client in round.plans if client not in counting]
    round = replace(round.without(engine, server, lost) if lost else round, timing=time)
    replies = [part_of(reply, round.plans) for reply in replies if not round.plans.keys().isdisjoint(reply.clients)]
    return round, replies, not all(counting & part.keys() for part in parts)


def part_of(reply: ClientReply, clients: Collection[int]) -> ClientReply:
    """The part of a reply that these clients have sent."""
    rows = [k for k, client in enumerate(reply.clients) if client in clients]
    if len(rows) == len(reply.clients):
        return reply
    index = torch.tensor(rows, dtype=torch.int64)
    envelope = map_once(lambda value: value.index_select(0, index.to(value.device)), reply.envelope)
    own, masked, plain = ([values[k] for k in rows] for values in (reply.clients, reply.masked_bytes, reply.masked_plain_bytes))
    return reply._replace(clients=own, envelope=envelope, masked_bytes=masked, masked_plain_bytes=plain)


def in_order(replies: Iterable[ClientReply], tasks: Sequence[ClientTask]) -> Iterator[ClientReply]:
    """Sort the replies by their tasks, longest first, so that sums do not depend on the order of arrival.

    A reply waits here until all earlier ones have arrived.
    """
    due = dict.fromkeys(task.client for task in sorted(tasks, key=lambda task: -task.num_steps))
    early: dict[int, ClientReply] = {}
    for arrived in replies:
        early |= dict.fromkeys(arrived.clients, arrived)
        while due and (first := next(iter(due))) in early:
            reply = early[first]
            for client in reply.clients:
                del early[client], due[client]
            yield reply


def encoders_of(methods: Sequence[Method]) -> list[Stage]:
    """The stages that encode, in the order of decoding."""
    return [method for method in reversed(methods) if isinstance(method, Stage) and method.kind == "encode"]


def decoded(
    reply: ClientReply, methods: Sequence[Method], encoders: Sequence[Stage], received: Download, private: PrivateSum | None
) -> ClientReply:
    """Undo the encoding of a reply, and measure and bound it again, because decoded values may be longer than the client's bound."""
    if reply.manifest.fields is None:  # an empty reply is not encoded
        encoders = ()
    if not encoders and private is None and not any(method.of_change for method in methods):
        return reply
    measured, model = reply.envelope.measured, GlobalModel(received.params, received.buffers)

    encoded, envelope_of = distinct(reply.envelope._replace(measured={}))

    def decode(encoded: list[Tensor]) -> Envelope:
        envelope = envelope_of(encoded)
        for stage in encoders:
            envelope = stage.receive(envelope, reply.manifest.fields, model)
        envelope = with_measures(envelope, methods)
        return envelope if private is None else private.bound(envelope, received.server[private.name], model)

    return reply._replace(envelope=torch.func.vmap(decode)(encoded)._replace(measured=measured))


def account(
    server: ServerState, round: Round, down: Mapping[str, int], asked: Sequence[ClientTask], aggregate: Aggregate
) -> None:
    """Count the bytes of all clients' downloads, by sender, and of the uploads of the clients that were not dropped; and book them."""
    for sender, size in down.items():
        server.ledger.add(sender, down=size)
    if asked:
        server.ledger.book([task.client for task in asked], down_bytes=downloaded(server, round, asked))
    communicates, simulated = all(method.communicates for method in round.methods), round.timing and round.timing.taken()
    trained = aggregate.arrived.of(round.trained)
    server.ledger.book(
        trained.clients,
        steps=[round.plans[client] for client in trained.clients],
        up_bytes=trained.up_bytes if communicates else 0,
        seconds=[simulated[client] for client in trained.clients] if simulated else trained.seconds,
        loss=trained.loss,
    )
    if not communicates:
        return
    server.note_whole_models(task.client for task in asked if any(mask.ndim == 0 for mask in task.masks.values()))
    for sender, size in aggregate.up_bytes.items():
        server.ledger.add(sender, up=size)
