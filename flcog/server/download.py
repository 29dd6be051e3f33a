"""The broadcast of a round: made once, before new clients introduce themselves, and encoded if a method does so."""

from collections.abc import Mapping, Sequence

from torch.utils import _pytree as pytree

from flcog.client.messages import ClientTask, Download
from flcog.core.randomness import make_rng
from flcog.functional.model_function import without_negative_variances
from flcog.method import Broadcast, BroadcastStage, Method, method_of
from flcog.method.returned import broadcast_of
from flcog.server.engine import Engine
from flcog.server.state import ServerState
from flcog.wire.envelope import message_bytes
from flcog.wire.ledger import model_bytes, unsent_bytes


def send_down(
    engine: Engine, server: ServerState, methods: Sequence[Method], clients: Sequence[int]
) -> tuple[Download, Mapping[str, Mapping[int, int]] | None]:
    """The model and the methods' states as these clients receive them; if a stage encodes them, also each client's bytes by sender."""
    states = {method.name: broadcast_of(method, server.servers[method.name]) for method in methods}
    broadcast, down = Broadcast(server.params, server.buffers, states), None
    stage = method_of(methods, BroadcastStage)
    if stage is not None and clients:
        rng = make_rng(engine.seed, server.round, "broadcast", stage.name)
        broadcast, state, sizes = stage.send_down(server.servers[stage.name], broadcast, clients, engine.num_clients, rng)
        broadcast = broadcast._replace(buffers=without_negative_variances(broadcast.buffers))
        server.servers[stage.name] = state
        down = {sender: dict(zip(clients, each, strict=True)) for sender, each in sizes.items()}
        if not stage.server_keeps_its_model:
            server.params, server.buffers = broadcast.params, broadcast.buffers
    number = server.round
    return Download(number, engine.seed, *broadcast, engine.rates(number), engine.optimisation(number)), down


def plain_sizes(
    server: ServerState, methods: Sequence[Method], received: Download, asked: Sequence[ClientTask]
) -> dict[str, int]:
    """The bytes that these clients download together without encoding, by sender.

    Every client with a task receives the whole broadcast, because clients may have missed earlier ones. A state that has not changed
    counts again.
    """
    sizes = {
        method.name: len(asked) * sum(map(message_bytes, pytree.tree_leaves(received.server[method.name]))) for method in methods
    }
    if all(method.communicates for method in methods):
        met = server.reported.get("model", set())
        kept = sum(unsent_bytes(received.params, task.masks, task.client in met) for task in asked if task.masks)
        sizes["model"] = len(asked) * model_bytes(received.params, received.buffers) - kept
    return sizes
