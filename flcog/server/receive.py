"""Send tasks to this process's clients, decode their envelopes, add them up, and count their bytes."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from flcog.client.messages import ClientReply, ClientTask, Received
from flcog.method import GlobalModel, Method, Stage
from flcog.server.aggregate import Aggregate
from flcog.server.engine import Engine
from flcog.server.sharing import share_out
from flcog.wire.envelope import Envelope, num_bytes
from flcog.wire.ledger import Ledger, model_bytes


def receive(engine: Engine, round: Any, received: Received, tasks: Sequence[ClientTask], directions: bool = False) -> Aggregate:
    """Send this process's clients their tasks, and add up the replies of all processes.

    Args:
        engine: everything that is fixed before round 1.
        round: the round, with its methods and plans.
        received: the broadcast.
        tasks: of all clients of the round.
        directions: whether to add up normalised changes, for the cosine between clients' updates.
    """
    shares = share_out(engine, round.plans)
    encoders = [method for method in reversed(round.methods) if isinstance(method, Stage) and method.kind == "encode"]
    weights = {task.client: task.weight for task in tasks}
    aggregate = Aggregate(round.methods, weights, directions, engine.settings.on_bad_update, engine.processes.device)
    mine = [tasks[i] for i in shares[engine.processes.rank]]
    with closing(engine.clients.train(received, mine)) as replies:
        # Executors in this process return clients in an order that is always the same.
        for reply in replies if engine.clients.here is not None else in_order(replies, mine):
            aggregate.add(decoded(reply, encoders, received), received.buffers, received.round)
    aggregate.reduce(engine.processes, list(weights), somebody_idle=not all(shares))
    return aggregate


def in_order(replies: Iterable[ClientReply], tasks: Sequence[ClientTask]) -> Iterator[ClientReply]:
    """Sort the replies by their tasks, longest first, so that sums do not depend on the order of arrival.

    Args:
        replies: as they arrive. A reply waits here until all earlier ones have arrived.
        tasks: one for each client that replies.
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
    if due:
        raise ValueError(
            f"{len(due)} of {len(tasks)} clients have sent no reply to their task; the first is client {next(iter(due))}"
        )


def decoded(reply: ClientReply, encoders: Sequence[Stage], received: Received) -> ClientReply:
    """Undo the encoding of a reply.

    Args:
        reply: of one or more clients.
        encoders: the stages that encode, in reverse order.
        received: the broadcast.
    """
    if not encoders or reply.manifest.fields is None:  # an empty reply is not encoded
        return reply
    measured, model = reply.envelope.measured, GlobalModel(received.params, received.buffers)

    def decode(envelope: Envelope) -> Envelope:
        for stage in encoders:
            envelope = stage.receive(envelope, reply.manifest.fields, model)
        return envelope

    return reply._replace(envelope=torch.func.vmap(decode)(reply.envelope._replace(measured={}))._replace(measured=measured))


def account(
    ledger: Ledger, methods: Sequence[Method], received: Received, asked: Sequence[ClientTask], aggregate: Aggregate
) -> None:
    """Count the bytes sent down to all clients with a task, and up by the clients that were not dropped."""
    for method in methods:
        size = sum(map(num_bytes, pytree.tree_leaves(received.server[method.name])))
        ledger.add(method.name, down=len(asked) * size)
    if not all(method.communicates for method in methods):
        return
    model = model_bytes(received.params, received.buffers)
    kept = sum(_unsent_bytes(received, task.masks) for task in asked if task.masks)
    ledger.add("model", down=len(asked) * model - kept)
    for sender, size in aggregate.up_bytes.items():
        ledger.add(sender, up=size)


def _unsent_bytes(received: Received, masks: Mapping[str, Tensor]) -> int:
    """The bytes of the model that a client with these masks does not receive. In the first round clients receive the whole model."""
    masked = {name: mask for name, mask in masks.items() if mask.ndim or received.round}
    return sum(received.params[name].nbytes * int((~mask).sum()) // mask.numel() for name, mask in masked.items())
