"""The states of clients in other processes: checkpoints contain a copy, and a resumed run sends it back."""

from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from flcog.client.messages import Clients
from flcog.run.client_states import SavedClientStates


def fetch_states(clients: Clients, store: SavedClientStates) -> None:
    """Copy the states that have changed to the store. Clients in this process keep their states there anyway."""
    if clients.here is not None:
        return
    for client, states in clients.snapshot().items():
        known, present = pytree.tree_flatten(store.get(client)), pytree.tree_flatten(states)
        if known[1] != present[1] or not all(map(_equal, known[0], present[0])):
            store.put(client, states)


def send_states(clients: Clients, store: SavedClientStates) -> None:
    """Replace the states of clients in other processes by the stored states."""
    if clients.here is None:
        clients.restore({client: store.get(client) for client in store.clients})


def _equal(one: Any, other: Any) -> bool:
    both = isinstance(one, Tensor) and isinstance(other, Tensor)
    return torch.equal(one, other) and one.dtype == other.dtype if both else one == other
