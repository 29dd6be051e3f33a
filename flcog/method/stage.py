"""Stages: methods that change *how* clients send their envelopes, or the server its broadcast, for example in fewer bytes."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import torch

from flcog.core.types import Params, Slot
from flcog.method.context import Context, GlobalModel
from flcog.method.method import Method
from flcog.wire.envelope import Envelope

Kind = Literal["alter", "smooth", "bound", "encode"]
ORDER: tuple[Kind, ...] = ("alter", "smooth", "bound", "encode")
"""The order of stages, independent of the list of methods. Attackers skip *smooth* and *bound*."""


@dataclass(frozen=True, kw_only=True)
class Stage(Method, protocol=True):
    """Changes the envelope of every client, with the changes of the model and the messages of all methods in it.

    Like any method, a stage declares its state in ``init_client`` and its random numbers in ``draw``. Its ``server_step`` runs before
    those of other methods.
    """

    kind: ClassVar[Kind]
    """The purpose of the stage, which fixes its place: *alter* (attacks), *smooth* (momentum over rounds), *bound* (clipping) or
    *encode* (fewer bytes)."""

    @property
    def keeps_residual(self) -> bool:
        """Whether the state of a client is a dict of tensors like those in its envelope, by name, such as the part that was not sent.

        It is empty before the client's first upload; zeros then take the place of missing tensors. Only ``send`` sees the state.
        """
        return False

    @abstractmethod
    def send(self, envelope: Envelope, ctx: Context) -> tuple[Envelope, Slot]:
        """The changed envelope, and the stage's new state. *Chain; pure.*

        ``flcog.wire.envelope.map_fields`` maps each distinct tensor once, and leaves the measurements alone.
        """

    def receive(self, envelope: Envelope, fields: Any, received: GlobalModel) -> Envelope:
        """Decode the envelope at the server. *Chain in reverse order; pure.*

        Args:
            envelope: one client's, as ``send`` returned it.
            fields: the shape and type of each tensor before it was encoded, a tree of :class:`flcog.wire.envelope.Field`.
            received: the global model that the client received.
        """
        return envelope


class Broadcast(NamedTuple):
    """Everything that all clients of a round receive.

    Args:
        params, buffers: the global model.
        server: for each method, the part of its server state that clients receive.
    """

    params: Params
    buffers: Params
    server: Mapping[str, Slot]


class SentBroadcast(NamedTuple):
    """The result of ``send_down``.

    Args:
        broadcast: decoded, as clients see it.
        state: the stage's new state at the server.
        sizes: the bytes that each client of the round downloads, in the order of clients, by sender: ``model``, then each method.
    """

    broadcast: Broadcast
    state: Slot
    sizes: Mapping[str, Sequence[int]]


@dataclass(frozen=True, kw_only=True)
class BroadcastStage(Method, protocol=True):
    """Changes the broadcast, with the model and the parts of all methods' server states in it. A run has at most one such stage."""

    @property
    def server_keeps_its_model(self) -> bool:
        """Whether the server continues from its own model; otherwise it continues from the decoded one, which clients receive."""
        return True

    @abstractmethod
    def send_down(
        self, server: Slot, broadcast: Broadcast, clients: Sequence[int], num_clients: int, rng: torch.Generator
    ) -> SentBroadcast:
        """Encode and decode the broadcast of a round. *Exclusive; plain Python.*

        Args:
            server: the stage's state, with tensors as leaves.
            broadcast: of the round.
            clients: the clients that download it.
            num_clients: the number of all clients.
            rng: keyed by seed, round and method.
        """
