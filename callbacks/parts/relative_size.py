"""A client's number of samples, measured by that of the average client."""

import torch
from torch import Tensor

from flcog.core.precision import number_dtype
from flcog.method import ClientView


def relative_size(client: ClientView) -> Tensor:
    """``N n_k / sum_j n_j`` over all N clients, not only the round's: 1 where all clients are equally large.

    FedDyn and FedDC divide the strength of their terms by it in their authors' code: the local loss is a mean over the client's own
    samples, and so counts for more, per sample, where a client has few.

    >>> from types import SimpleNamespace
    >>> federation = SimpleNamespace(partition=SimpleNamespace(indices=range(90)), num_clients=3)
    >>> relative_size(SimpleNamespace(federation=federation, num_samples=15))
    tensor(0.5000)
    """
    mean = len(client.federation.partition.indices) / client.federation.num_clients
    return torch.tensor(client.num_samples / mean, dtype=number_dtype())
