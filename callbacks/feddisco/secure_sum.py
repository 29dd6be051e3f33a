"""Secure aggregation with random masks that cancel: the server learns only the sum of the clients' counts."""

import torch
from torch import Tensor

from flcog.callbacks.parts.pairwise_masks import pair_masks

BITS = 32
"""Messages are whole numbers of four bytes."""


def masked(counts: Tensor, secret: str) -> Tensor:
    """The clients' messages: their counts, with the masks that each client shares with the next and with the previous client.

    Masks are uniform modulo 2^32. So is each message, and any set of messages that lacks one: they reveal nothing about the
    counts. Modulo 2^32 all messages add up to the sum of the counts. A single client has no other to share a mask with.

    FedDisco's A.3 (https://arxiv.org/abs/2305.19229) describes the case of two clients. A protocol such as Bonawitz et al., CCS
    2017, also lets clients agree on masks and removes the masks of clients that drop out; this function does not.

    Args:
        counts: whole numbers of at least 0 with sums below 2^32, [clients, ...].
        secret: the source of the masks.

    >>> messages = masked(torch.tensor([[3, 0], [1, 4]]), "secret")
    >>> unmasked_sum(messages)
    tensor([4, 4])
    """
    num = len(counts)
    masks = [pair_masks(secret, k, {(k - 1) % num, (k + 1) % num}, counts[k].numel(), BITS) for k in range(num)]
    return (torch.stack(masks).view(counts.shape) + counts) % 2**BITS


def unmasked_sum(messages: Tensor) -> Tensor:
    """The sum of the clients' counts, from the messages of all clients."""
    return messages.sum(0) % 2**BITS
