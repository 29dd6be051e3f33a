"""SecureAggregation: the server adds up masked uploads, of which it can read only the sum.

Each pair of clients has a seed, which expands to a vector of uniform words from a cryptographic generator. The client with the smaller
number adds it to its message, and the other one subtracts it. In a simulation all seeds come from one secret; clients of a deployment
would agree on them in pairs.
"""

import hashlib
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from flcog.core.checks import within
from flcog.method import RoundKeys, SealedSum

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
    return torch.frombuffer(bytearray(hashlib.shake_256(seed).digest(count * bits // 8)), dtype=WORDS[bits])


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


def reveal(keys: RoundKeys, arrived: Collection[int]) -> tuple[dict[int, bytes], dict[tuple[int, int], bytes]]:
    """The seeds that are needed to read the sum of the uploads that have arrived: of clients, and of pairs with a missing client.

    Of each client either its own seed or its pairs' seeds are revealed, and never both, so that the upload of a missing client
    stays unreadable if it arrives late.
    """
    missing = [client for client in keys.clients if client not in arrived]
    own = {client: own_seed(keys.secret, client) for client in arrived}
    return own, {(client, other): pair_seed(keys.secret, client, other) for client in arrived for other in missing}


@dataclass(frozen=True)
class SecureAggregation(SealedSum):
    """Hides each client's upload from the server, which learns only the weighted sum over the clients of the round.

    Client k multiplies its upload u_k by its weight p_k, rounds it to multiples of 2^-f, and adds masks modulo 2^bits::

        y_k = round(2^f p_k u_k) + PRG(b_k) + sum_{j > k} PRG(s_kj) - sum_{j < k} PRG(s_kj)   mod 2^bits

    Each message alone is uniformly distributed. In the sum of all messages the masks of pairs cancel. Clients then reveal the seeds b_k
    of the clients whose messages have arrived, and the seeds s_kj of the others, so that the server can subtract the remaining masks. The
    upload contains the changes of the parameters and buffers, all methods' messages, the weight, the loss, and the length of the
    change. The sum over n clients differs from the sum of their exact values by at most n 2^-(f + 1). Numbers above
    2^(bits - 2 - f) / n are reported.

    The masks come from SHAKE-256 and new secrets of the operating system in every round, and change no result. Key exchange and secret
    sharing are not included: one secret stands for all seeds, so a simulation hides nothing from the person who runs it. Columns that
    a module logs in its own ``training_step``, and ``drift/cosine``, are withheld.

    Bonawitz et al., Practical Secure Aggregation for Privacy-Preserving Machine Learning, CCS 2017, https://eprint.iacr.org/2017/281.

    Args:
        bits: the length of a number, 32 or 64.
        fraction_bits: f; null for half of ``bits``.

    Example:
        >>> SecureAggregation(bits=32, fraction_bits=20).limit(num_clients=8)
        128.0
    """

    bits: Literal[32, 64] = 64
    fraction_bits: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        within(self, f"[0, {self.bits - 2}]", "fraction_bits")

    @property
    def _fraction_bits(self) -> int:
        return self.bits // 2 if self.fraction_bits is None else self.fraction_bits

    @property
    def step(self) -> float:
        return 2.0**-self._fraction_bits

    def limit(self, num_clients: int) -> float:
        return 2.0 ** (self.bits - 2 - self._fraction_bits) / num_clients

    def seal(self, values: Tensor, client: int, keys: RoundKeys) -> Tensor:
        words = (values * 2.0**self._fraction_bits).round().to(WORDS[self.bits])
        words += stream(own_seed(keys.secret, client), len(words), self.bits)
        return words + pair_masks(keys.secret, client, keys.clients, len(words), self.bits)

    def finish(self, words: Tensor, clients: Sequence[int], keys: RoundKeys) -> Tensor:
        (own, pairs), words = reveal(keys, clients), words.clone()
        for seed in own.values():
            words -= stream(seed, len(words), self.bits)
        for (client, other), seed in pairs.items():
            words.sub_(stream(seed, len(words), self.bits), alpha=sign(client, other))
        return words.double() * self.step
