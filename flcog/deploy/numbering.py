"""Gives the clients of a node's data their numbers in the federation."""

import copy
import dataclasses
from collections.abc import Sequence

import numpy as np

from flcog.data import FederatedDataModule, Partition


def hosted(datamodule: FederatedDataModule, clients: Sequence[int], of: int) -> FederatedDataModule:
    """The data of a node.

    Args:
        datamodule: the node's data module. If it has the data of all clients, the node takes its own. Otherwise it has as many clients as
            the node hosts, and they receive these numbers in order.
        clients: the numbers of the node's clients.
        of: the number of all clients.
    """
    found = datamodule.federation.num_clients
    if wrong := [client for client in clients if not 0 <= client < of]:
        raise ValueError(
            f"the federation's clients have the numbers 0 to {of - 1}; this node's clients={wrong[0]}: correct its number"
        )
    if found == of:
        return datamodule.only(clients)
    if found != len(clients):
        raise ValueError(
            f"the node's data have {found} clients, and the node hosts {len(clients)} of {of}: give data with num_clients={len(clients)}"
        )
    own, federation = copy.copy(datamodule), datamodule.federation
    numbered = dataclasses.replace(
        federation,
        partition=_numbered(federation.partition, clients, of),
        client_val=federation.client_val and _numbered(federation.client_val, clients, of),
        client_test=federation.client_test and _numbered(federation.client_test, clients, of),
        whole=None,
    )
    own._federation = numbered.only(clients)
    return own


def shares(clients: int, nodes: int) -> list[Sequence[int]]:
    """The clients of each node: client k lives on node k modulo their number."""
    if nodes > clients:
        raise ValueError(f"--try {nodes} starts {nodes} nodes, and the federation has {clients} clients: give at most {clients}")
    return [range(node, clients, nodes) for node in range(nodes)]


def _numbered(partition: Partition, clients: Sequence[int], of: int) -> Partition:
    """The partition with its clients at these numbers, and no samples for all others."""
    parts = {number: partition.client(k) for k, number in enumerate(clients)}
    nothing = np.zeros(0, np.int64)
    return Partition.from_clients([parts.get(number, nothing) for number in range(of)])
