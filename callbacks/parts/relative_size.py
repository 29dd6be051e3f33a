"""A client's number of samples relative to the average client's."""

import torch
from torch import Tensor

from flcog.core.precision import number_dtype
from flcog.method import ClientView


def relative_size(client: ClientView) -> Tensor:
    """``N n_k / sum_j n_j`` over all N clients of the run: 1 if all clients are equally large.

    FedDyn and FedDC divide the strength of their terms by it in their authors' code: the local loss is a mean over the client's
    own samples, so each sample of a small client counts for more.

    >>> from flcog.method import Population
    >>> relative_size(ClientView(0, 15, 0, Population(3, 90, "classification", 10)))
    tensor(0.5000)
    """
    return torch.tensor(client.num_samples / client.population.mean_size, dtype=number_dtype())
