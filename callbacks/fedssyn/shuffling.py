"""The shuffle of Fedssyn: the server mixes the samples that clients sent, and distributes them."""

import hashlib
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flcog.core import trees
from flcog.data import Exchange, Federation, Partition, Samples


@dataclass(frozen=True, kw_only=True)
class SampleExchange(Exchange):
    """The clients' data before and after an exchange. Its digest identifies each client's samples (see :func:`digest_of`).

    ``own`` are a client's own samples that remain after the exchange, and ``sent`` counts the samples that each client sent.
    """

    before: Partition
    own: Partition
    received: Partition
    sent: np.ndarray

    @property
    def shares(self) -> np.ndarray:
        """p of each client: the received part of its data."""
        return self.received.sizes / (self.own.sizes + self.received.sizes)


def digest_of(own: Partition, received: Partition, *added: Tensor) -> str:
    """Eight hex digits that identify two partitions and the added samples, which are on the CPU.

    >>> nobody, all_ = Partition.from_clients([np.arange(0)]), Partition.from_clients([np.arange(2)])
    >>> len({digest_of(nobody, all_), digest_of(all_, nobody), digest_of(nobody, all_, torch.zeros(2))})
    3
    """
    digest = hashlib.sha256(f"{own.hash} {received.hash}".encode())
    for part in added:
        digest.update(part.contiguous().numpy().data)
    return digest.hexdigest()[:8]


class JointInputs:
    """Stored inputs followed by synthetic ones, without a copy. For stored inputs that are read from disk."""

    def __init__(self, stored: np.ndarray, added: np.ndarray) -> None:
        self.stored, self.added, self.shape = stored, added, (len(stored) + len(added), *stored.shape[1:])
        self.dtype, self.ndim = stored.dtype, stored.ndim

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Any) -> np.ndarray:
        """Rows by a slice or an array of non-negative indices."""
        index = np.arange(len(self))[rows] if isinstance(rows, slice) else np.asarray(rows)
        late = index >= len(self.stored)
        values = np.empty((*index.shape, *self.shape[1:]), self.dtype)
        values[~late] = self.stored[index[~late]]
        values[late] = self.added[index[late] - len(self.stored)]
        return values


def even_split(total: int, capacities: np.ndarray) -> np.ndarray:
    """Each client's share of ``total``, as even as their capacities allow; the first clients get the remainder.

    >>> even_split(10, np.array([9, 9, 9])).tolist()
    [4, 3, 3]
    >>> even_split(10, np.array([1, 9, 9])).tolist()
    [1, 5, 4]
    """
    capacities, counts = np.asarray(capacities, np.int64), np.zeros(len(capacities), np.int64)
    left = min(total, int(capacities.sum()))
    while left:
        open_ = np.flatnonzero(counts < capacities)
        step = min(left // len(open_), int((capacities - counts)[open_].min()))
        if step == 0:
            counts[open_[:left]] += 1
            break
        counts[open_] += step
        left -= step * len(open_)
    return counts


def capacity(num_samples: np.ndarray, p: float | None, wanted: np.ndarray) -> np.ndarray:
    """How many samples each client may add to its ``num_samples`` so that at most a fraction ``p`` is added: p / (1 - p) of them.

    >>> capacity(np.array([94, 9400]), 0.06, np.array([500, 500])).tolist()
    [6, 500]
    """
    if p is None or p == 1:
        return wanted
    # Up to rounding errors: 0.06 / 0.94 * 94 should be 6 and is 5.999... in floating point.
    return np.minimum(wanted, np.floor(p / (1 - p) * num_samples + 1e-9).astype(np.int64))


def deal(counts: np.ndarray, capacities: np.ndarray, rng: np.random.Generator) -> Partition:
    """Positions in the clients' joined contributions of ``counts`` each, shuffled and distributed as evenly as possible."""
    sizes = even_split(int(counts.sum()), capacities)
    order = rng.permutation(int(counts.sum()))[: int(sizes.sum())]
    return Partition(order, np.concatenate([[0], np.cumsum(sizes)]))


def add_samples(federation: Federation, inputs: Tensor, targets: Tensor, received: Partition) -> tuple[Federation, Partition]:
    """Append new samples, which ``received`` assigns to clients; returns the federation and ``received`` by new positions."""
    train, first = federation.train, len(federation.train)
    targets = torch.cat([train.targets, targets.to(train.targets)])
    joined: Any
    if isinstance(train.inputs, Tensor):
        joined = torch.cat([train.inputs, inputs.to(train.inputs.device)])
    else:
        joined = JointInputs(train.inputs, inputs.numpy())
    moved = Partition(received.indices + first, received.offsets)
    clients = [np.concatenate([federation.partition.client(k), moved.client(k)]) for k in range(federation.num_clients)]
    return replace(
        federation,
        train=Samples(joined, targets),
        partition=Partition.from_clients(clients),
        whole=federation.split,  # papers cite the split of the real samples
    ), moved


def mix_real(partition: Partition, fractions: np.ndarray, rng: np.random.Generator) -> tuple[Partition, Partition]:
    """Each client gives a random fraction of its samples to a pool and gets as many back; returns kept and received samples.

    >>> one_class_each = Partition.from_clients([np.arange(10), np.arange(10, 20)])
    >>> kept, got = mix_real(one_class_each, np.array([0.3, 0.3]), np.random.default_rng(0))
    >>> kept.sizes.tolist(), got.sizes.tolist()
    ([7, 7], [3, 3])
    """
    kept, given = [], []
    for client in range(partition.num_clients):
        own = rng.permutation(partition.client(client))
        count = round(float(fractions[client]) * len(own))
        given.append(own[:count])
        kept.append(own[count:])
    sizes = np.array([len(part) for part in given])
    pool = rng.permutation(np.concatenate(given))
    return Partition.from_clients(kept), Partition(pool, np.concatenate([[0], np.cumsum(sizes)]))


def num_bytes(samples: Samples, count: int) -> int:
    """The bytes of ``count`` labelled samples in a message: inputs as stored, and eight bytes for a label."""
    first = samples.gather(torch.zeros(1, dtype=torch.int64, device=samples.labels.device))
    return count * (trees.num_bytes(first) + 8)
