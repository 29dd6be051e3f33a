"""Secure aggregation by random masks that cancel: the server learns the sum of the clients' counts, and nothing else."""

import torch
from torch import Generator, Tensor

MODULUS = 2**32
"""Messages are whole numbers of four bytes."""


def masked(counts: Tensor, rng: Generator) -> Tensor:
    """The clients' messages: their counts, plus the mask shared with the next client, minus the mask shared with the previous client.

    Masks are uniform modulo 2^32, so each message alone is too, and all but one of them together are: they say nothing of the
    counts. Modulo 2^32 they add up to the sum of the counts. One client alone has nobody to share a mask with.

    FedDisco's A.3 (https://arxiv.org/abs/2305.19229) has the case of two clients. A protocol such as Bonawitz et al., CCS 2017, lets
    clients agree on masks, and removes the masks of clients that drop out. It is not part of this.

    Args:
        counts: whole numbers of at least 0 whose sums are below 2^32, [clients, ...].
        rng: draws the masks.

    >>> messages = masked(torch.tensor([[3, 0], [1, 4]]), torch.Generator().manual_seed(0))
    >>> unmasked_sum(messages)
    tensor([4, 4])
    """
    masks = torch.randint(MODULUS, counts.shape, generator=rng)
    return (masks - masks.roll(1, 0)).add_(counts).remainder_(MODULUS)


def unmasked_sum(messages: Tensor) -> Tensor:
    """The sum of the clients' counts, from the messages of all clients."""
    return messages.sum(0) % MODULUS
