"""A broadcast stage: a method that changes *how* the server sends its broadcast, for example in fewer bytes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from flcog.core.types import Params, Slot
from flcog.method.method import Method


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
        raise NotImplementedError
