"""The server's state, which a round changes and a checkpoint saves."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor
from torch.utils import _pytree as pytree

from flcog.core.types import Params, Slot
from flcog.method import Method, Uploads
from flcog.server.in_flight import Traffic
from flcog.wire.envelope import message_bytes
from flcog.wire.ledger import Ledger


@dataclass
class ServerState:
    """The global model, the methods' state at the server, the clients' first-contact messages, and the bytes sent so far.

    Parameters and buffers are replaced, never changed in place. ``servers`` are the states of methods by name. ``seconds`` is the
    simulated time, and ``steps`` counts the optimiser steps of all clients. ``rates`` are the learning rates of the optimiser's groups
    in the last round. ``reported`` are the clients whose first-contact messages were counted, by method; under ``model``, those that
    received parameters which they keep for themselves from then on.
    """

    params: Params
    buffers: Params
    servers: dict[str, Slot]
    round: int = 0
    seconds: float = 0.0
    steps: int = 0
    rates: Sequence[float] = ()
    ledger: Ledger = field(default_factory=Ledger)
    traffic: Traffic = field(default_factory=Traffic)
    reported: dict[str, set[int]] = field(default_factory=dict)
    uploads: dict[str, Uploads] = field(default_factory=dict)
    """The single uploads of the current round, for methods that are also observers. They are deleted after the round."""
    messages: dict[str, dict[int, Any]] = field(default_factory=dict)
    """The first-contact messages by method and client; None for a client without a message."""
    scores: dict[str, Tensor] = field(default_factory=dict, repr=False, compare=False)
    """The clients' scores of the last evaluation, float64 [num_clients], by column; NaN without a held-out part."""
    evaluated: tuple[tuple[Any, ...], Params] | None = field(default=None, repr=False, compare=False)
    """The round, parameters and states that methods evaluated last, and the result."""

    @property
    def parts(self) -> tuple[Any, ...]:
        """The round, parameters and states, on which the evaluated parameters depend."""
        return (self.round, self.params, *self.servers.values())

    def keep_evaluated(self, params: Params) -> None:
        """Evaluate these parameters until the state changes."""
        self.evaluated = self.parts, params

    def copy(self, round: int) -> "ServerState":
        """Copy the state, with an empty ledger, to try another round without changing the run."""
        reported = {name: set(clients) for name, clients in self.reported.items()}
        messages = {name: dict(values) for name, values in self.messages.items()}
        model = self.params, dict(self.buffers), dict(self.servers)
        return ServerState(*model, round, self.seconds, traffic=self.traffic, reported=reported, messages=messages)

    def state_dict(self) -> dict[str, Any]:
        """The entries of a checkpoint. Clients without a message are left out."""
        sent = {name: {k: message for k, message in kept.items() if message is not None} for name, kept in self.messages.items()}
        return {
            "round": self.round,
            "seconds": self.seconds,
            "steps": self.steps,
            "rates": list(self.rates),
            "traffic": self.traffic.state_dict(),
            "params": self.params,
            "buffers": self.buffers,
            "servers": self.servers,
            "reported": {name: sorted(clients) for name, clients in self.reported.items()},
            "messages": {name: messages for name, messages in sent.items() if messages},
            "ledger": self.ledger.state_dict(),
        }

    def newcomers(self, methods: Sequence[Method], clients: Sequence[int]) -> dict[str, list[int]]:
        """The clients that have not sent a first-contact message yet, by method. Only ``weights`` reads such messages."""
        asking = [method.name for method in methods if method.overrides("weights") and method.overrides("init_client")]
        return {
            name: new for name in asking if (new := [client for client in clients if client not in self.messages.get(name, {})])
        }

    def meet(self, messages: Mapping[str, Mapping[int, Any]]) -> None:
        """Keep first-contact messages and count their bytes, once even if an early checkpoint lacks the messages."""
        for name, sent in messages.items():
            known = self.reported.setdefault(name, set())
            self.messages.setdefault(name, {}).update(sent)
            for client in sent.keys() - known:
                known.add(client)
                size = sum(map(message_bytes, pytree.tree_leaves(sent[client])))
                self.ledger.add(name, up=size)
                self.ledger.book([client], up_bytes=size)

    def note_whole_models(self, clients: Iterable[int]) -> None:
        """Keep the clients that have received the parameters which they do not share."""
        new = set(clients) - self.reported.get("model", set())
        if new:
            self.reported.setdefault("model", set()).update(new)

    def messages_to(self, method: Method, clients: Iterable[int]) -> list[Any]:
        """These clients' first-contact messages to a method."""
        messages = self.messages.get(method.name, {})
        return [messages.get(client) for client in clients]
