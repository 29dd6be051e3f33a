"""A round of training as a value: its clients with their numbers of steps and weights, the broadcast, and its simulated time."""

import warnings
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch.utils import _pytree as pytree

from flcog.client.messages import ClientTask, Download
from flcog.core.randomness import make_rng
from flcog.core.types import Params, Slot
from flcog.functional.apply import Apply
from flcog.functional.model_function import without_negative_variances
from flcog.method import (
    Broadcast,
    BroadcastStage,
    Cohort,
    LocalParts,
    Method,
    OwnDownload,
    ParameterMask,
    Participants,
    PrivateSum,
    Workload,
    method_of,
)
from flcog.method.returned import as_tensors, broadcast_of
from flcog.server.engine import Engine
from flcog.server.in_flight import Flights
from flcog.server.state import ServerState
from flcog.wire.envelope import message_bytes
from flcog.wire.ledger import masked_bytes, model_bytes


@dataclass(frozen=True)
class Timing:
    """The time of a round in simulated seconds, counted from the moment when the server sent the tasks.

    ``clients`` are those whose uploads count. In asynchronous rounds each of them has a start, and the round an ``end`` in seconds
    since the start of the run; in others all start with the round.
    """

    finishes: Mapping[int, float]
    clients: Collection[int]
    seconds: float
    starts: Mapping[int, float] = field(default_factory=dict)
    end: float | None = None

    def taken(self) -> dict[int, float]:
        """The seconds that each client with a task needed."""
        return {client: time - self.starts.get(client, 0.0) for client, time in self.finishes.items()}

    @property
    def late(self) -> int:
        """The number of clients that finished after the end."""
        return len(self.finishes) - len(self.clients)

    def figures(self) -> dict[str, float]:
        """The mean time that clients waited for the end of the round, and its share in the time of all clients with a task."""
        waits = [self.seconds - self.finishes[client] for client in self.clients]
        total = len(self.finishes) * self.seconds - sum(self.starts[client] for client in self.finishes if self.starts)
        return {
            "time/waiting": sum(waits) / len(waits) if waits else 0.0,
            "time/idle_share": sum(waits) / total if total else 0.0,
        }


@dataclass(frozen=True)
class Round:
    """One round of training, planned.

    ``plans`` are the numbers of local steps of the clients that take part. ``down`` are the encoded bytes of each client's download by
    sender; None if nothing encodes the broadcast. ``asking`` are the simulated seconds in which the selection has asked clients for
    their losses, and ``timing`` is the time after that, once the clients have trained. The clients of ``flights`` have received earlier
    broadcasts.

    ``counts``: whether the clients' replies count. If a private sum has no client, another one trains in their place, and only the
    shapes of its reply are read, so that the round consists of noise.
    """

    number: int
    methods: Sequence[Method]
    selection: Participants
    plans: Mapping[int, int]
    cohort: Cohort
    received: Download
    down: Mapping[str, Mapping[int, int]] | None = None
    asking: float = 0.0
    timing: Timing | None = None
    flights: Flights | None = None
    counts: bool = True

    @property
    def trained(self) -> list[int]:
        """The clients whose replies count."""
        return list(self.plans) if self.counts else []

    def without(self, engine: Engine, server: ServerState, clients: Sequence[int]) -> "Round":
        """Plan the same round without these clients."""
        plans = {client: steps for client, steps in self.plans.items() if client not in clients}
        return replace(self, plans=plans, cohort=weigh(engine, server, self.methods, plans, self.selection, self.cohort.metrics))


def weigh(
    engine: Engine,
    server: ServerState,
    methods: Sequence[Method],
    plans: Mapping[int, int],
    selection: Participants,
    metrics: dict[str, float],
) -> Cohort:
    """Compute the cohort's aggregation weights: the selection's own, or shares of samples, which methods may change."""
    num_samples = engine.roll_call.sizes[list(plans)].double()
    cohort = Cohort(
        round=server.round,
        clients=list(plans),
        num_clients=engine.num_clients,
        num_samples=num_samples,
        weights=num_samples / num_samples.sum(),
        apply=Apply(engine.model, server.buffers),
        buffers=server.buffers,
        optimisation=engine.local_optimiser(server.round)[1],
        metrics=metrics,
        seed=engine.seed,
    )
    if (private := method_of(methods, PrivateSum)) is not None:
        cohort.weights = private.shares(server.servers[private.name], num_samples)
        return cohort
    weighing = [method for method in methods if method.overrides("weights")] if plans else []
    if selection.weights is not None and plans:
        by_client = dict(zip(selection.clients, selection.weights, strict=True))
        weights = torch.stack([by_client[client] for client in plans])
        cohort.weights, cohort.total_weight = weights / weights.sum(), float(weights.sum())
    for method in weighing:
        cohort.weights = _reweighed(method, server.messages_to(method, plans), cohort)
    return cohort


def _reweighed(method: Method, messages: Sequence[object], cohort: Cohort) -> torch.Tensor:
    """Let one method change the weights."""
    proposed = method.weights(cohort.weights, messages, cohort).double()
    if proposed.sum() == 0:
        warnings.warn(
            f"{method.name} gave every client of round {cohort.round + 1} weight 0: keeping the weights before it", stacklevel=2
        )
        return cohort.weights
    # Unchanged weights are not normalised again, because their sum differs from 1 by rounding, which would change the last digits.
    return cohort.weights if torch.equal(proposed, cohort.weights) else proposed / proposed.sum()


def planned_steps(engine: Engine, methods: Sequence[Method], round: int, clients: Sequence[int]) -> dict[int, int]:
    """The number of local steps of each client that does not drop out."""
    plans: dict[int, int] = {}
    planning = [method for method in methods if isinstance(method, Workload)]
    for client in clients:
        steps: int | None = engine.batching.num_steps(engine.size(client))
        for method in planning:
            if steps is not None:
                rng = make_rng(engine.seed, round, client, "plan", method.name)
                steps = method.plan(steps, engine.view(client, round), rng)
        if steps is not None:
            plans[client] = steps
    return plans


def tasks_of(
    engine: Engine, server: ServerState, methods: Sequence[Method], plans: Mapping[int, int], weights: Iterable[float]
) -> list[ClientTask]:
    """The task of each client, from its number of steps and its weight."""
    masking = [method for method in methods if isinstance(method, ParameterMask)]
    sending = [method for method in methods if isinstance(method, OwnDownload)]
    kept = dict.fromkeys(engine.local if method_of(methods, LocalParts) else (), torch.tensor(False))  # one dict for all clients

    def own(method: OwnDownload, client: int) -> Slot:
        rng = make_rng(engine.seed, server.round, client, "send", method.name)
        return as_tensors(method.send_to(server.servers[method.name], server.params, client, rng))

    return [
        ClientTask(
            client,
            steps,
            weight,
            masks_of(masking, server.params, client) | kept if masking else kept,
            {method.name: own(method, client) for method in sending},
        )
        for (client, steps), weight in zip(plans.items(), weights, strict=True)
    ]


def masks_of(methods: Sequence[ParameterMask], params: Params, client: int) -> dict[str, torch.Tensor]:
    """The parts of parameters that a client shares with the server, combined from all methods' masks."""
    masks: dict[str, torch.Tensor] = {}
    for method in methods:
        for name, mask in method.mask(params, client).items():
            masks[name] = masks[name] & mask if name in masks else mask
    return masks


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
    return Download(number, engine.seed, *broadcast, *engine.local_optimiser(number)), down


def plain_sizes(
    server: ServerState, methods: Sequence[Method], received: Download, asked: Sequence[ClientTask]
) -> dict[str, int]:
    """The bytes that these clients download together without encoding, by sender.

    Every client with a task receives the whole broadcast, because clients may have missed earlier ones. A state that has not changed
    counts again.
    """
    sizes = {
        method.name: len(asked) * sum(map(message_bytes, pytree.tree_leaves(received.server[method.name])))
        + sum(map(message_bytes, pytree.tree_leaves([task.own.get(method.name) for task in asked])))
        for method in methods
    }
    if all(method.communicates for method in methods):
        met = server.reported.get("model", set())
        whole = {name: value.nbytes for name, value in {**received.params, **received.buffers}.items()}
        # A client that the server has not met receives its own parameters, too, to start from them.
        unsent = [{name: mask for name, mask in task.masks.items() if mask.ndim or task.client in met} for task in asked]
        kept = sum(masked_bytes(masks, whole) for masks in unsent)
        sizes["model"] = len(asked) * model_bytes(received.params, received.buffers) - kept
    return sizes
