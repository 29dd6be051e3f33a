"""Masks that cancel in a sum over clients, from a cryptographic generator.

Each pair of clients has a seed, which expands to a vector of uniform words. The client with the smaller number adds it to its message,
and the other one subtracts it. In a simulation all seeds come from one secret; clients of a deployment would agree on them in pairs.
"""

import hashlib
import sys
from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor

WORDS = {32: torch.int32, 64: torch.int64}
"""Whole numbers by their number of bits. Torch adds them modulo 2^bits."""


def pair_seed(secret: str, one: int, other: int) -> bytes:
    """The seed of a pair of clients, in any order."""
    return _seed(secret, "pair", min(one, other), max(one, other))


def own_seed(secret: str, client: int) -> bytes:
    """The seed of the mask that a client shares with nobody."""
    return _seed(secret, "own", client)


def _seed(*parts: str | int) -> bytes:
    return hashlib.shake_256("/".join(map(str, parts)).encode()).digest(32)


def stream(seed: bytes, count: int, bits: int) -> Tensor:
    """The first words of a seed's stream, SHAKE-256 of the seed.

    >>> stream(b"seed", 2, 64)
    tensor([ 3631554265262118479, -3201818656474406339])
    """
    words = np.frombuffer(bytearray(hashlib.shake_256(seed).digest(count * bits // 8)), dtype=f"<i{bits // 8}")
    return torch.from_numpy(words if sys.byteorder == "little" else words.astype(f"=i{bits // 8}"))


def sign(client: int, other: int) -> int:
    """1 if the client adds the mask of the pair, -1 if it subtracts it."""
    return 1 if client < other else -1


def pair_masks(secret: str, client: int, others: Iterable[int], count: int, bits: int) -> Tensor:
    """The sum of the masks that a client shares with others. Over all clients, these sums add up to zero modulo 2^bits.

    >>> int(sum(pair_masks("secret", k, [0, 1, 2], 1, 32) for k in range(3)))
    0
    """
    total = torch.zeros(count, dtype=WORDS[bits])
    for other in others:
        if other != client:
            total.add_(stream(pair_seed(secret, client, other), count, bits), alpha=sign(client, other))
    return total
