"""The shuffle of Fedssyn: the server mixes the samples that clients sent, and distributes them."""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from flcog.core import trees
from flcog.data import Exchange, Federation, Partition, Samples
from flcog.method import Ask, DataHost, ExchangeSummary
from flcog.wire.envelope import Field


@dataclass(frozen=True, kw_only=True)
class SampleExchange(Exchange):
    """The clients' data before and after an exchange: ``own`` are a client's own samples that remain after it."""

    before: Partition
    own: Partition
    received: Partition

    @property
    def shares(self) -> np.ndarray:
        """p of each client: the received part of its data."""
        return self.received.sizes / (self.own.sizes + self.received.sizes)


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
    left = min(total, int(capacities.sum()))
    # The largest number of samples that each client can have, or all that it has room for.
    level = bisect_right(range(left + 1), left, key=lambda level: int(np.minimum(capacities, level).sum())) - 1
    counts = np.minimum(capacities, level)
    counts[np.flatnonzero(counts < capacities)[: left - counts.sum()]] += 1
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


def plan_real(
    sizes: np.ndarray, count: int, p: float | None, rng: np.random.Generator
) -> tuple[list[np.ndarray], np.ndarray, Partition]:
    """An order of each client's samples, the number of them that it gives, and the given samples that each client receives.

    Each client gives the fraction ``p`` of its samples, or ``count`` / (``count`` + its samples), and gets as many back.
    """
    orders = [rng.permutation(n) for n in sizes]
    given = np.rint(sizes * (count / (sizes + count) if p is None else p)).astype(np.int64)
    return orders, given, Partition(rng.permutation(int(given.sum())), np.concatenate([[0], np.cumsum(given)]))


def mix_real(partition: Partition, count: int, p: float | None, rng: np.random.Generator) -> tuple[Partition, Partition]:
    """The samples that clients keep, and those that they receive of others, by indices: no sample is copied.

    >>> one_class_each = Partition.from_clients([np.arange(10), np.arange(10, 20)])
    >>> kept, got = mix_real(one_class_each, 0, 0.3, np.random.default_rng(0))
    >>> kept.sizes.tolist(), got.sizes.tolist()
    ([7, 7], [3, 3])
    """
    orders, given, received = plan_real(partition.sizes, count, p, rng)
    own = [partition.client(client)[order] for client, order in enumerate(orders)]
    kept = Partition.from_clients([rows[number:] for rows, number in zip(own, given, strict=True)])
    pool = np.concatenate([rows[:number] for rows, number in zip(own, given, strict=True)])
    return kept, Partition(pool[received.indices], received.offsets)


Rows = tuple[Any, Any]
"""Inputs as the data set stores them, and targets."""


def share_synthetic(
    ask: Ask, sizes: np.ndarray, count: int, p: float | None, local: bool, shuffle: np.random.Generator
) -> ExchangeSummary:
    """The server's part for synthetic samples: it mixes the samples of all clients, and distributes them.

    At most the fraction ``p`` of each client's data is synthetic. With ``local``, clients train on their own synthetic samples, which they
    do not send.
    """
    made = np.array(list(ask("generate", dict.fromkeys(range(len(sizes)), count), 0).values()))
    if (wrong := np.flatnonzero((made < 0) | (made > count))).size:
        raise ValueError(f"Fedssyn: client {wrong[0]} has generated {made[wrong[0]]} samples, and {count} were asked for")
    sent = capacity(sizes, p, made)
    chosen = {
        client: torch.from_numpy(np.sort(shuffle.permutation(n)[:number]))
        for client, (n, number) in enumerate(zip(made, sent, strict=True))
    }
    if local:
        ask("keep", chosen, 0)
        return _summary(0, sizes, sent)
    pool = _joined(list(ask("send", chosen, _samples_like(sent)).values()))
    received = deal(sent, capacity(sizes, p, np.full(len(sizes), sent.sum())), shuffle)
    shares = {client: _rows(pool, received.client(client)) for client in range(len(sizes))}
    ask("receive", shares, 0)
    return _summary(_num_bytes(pool), sizes, received.sizes)


def share_real(ask: Ask, sizes: np.ndarray, count: int, p: float | None, shuffle: np.random.Generator) -> ExchangeSummary:
    """The server's part for real samples: each client gives a fraction of its samples and gets as many back."""
    orders, given, received = plan_real(sizes, count, p, shuffle)
    positions = {client: torch.from_numpy(order) for client, order in enumerate(orders)}
    counts = {client: (positions[client], int(given[client])) for client in positions}
    pool = _joined(list(ask("give", counts, _samples_like(given)).values()))
    shares = {client: _rows(pool, received.client(client)) for client in positions}
    ask("receive", shares, 0)
    return _summary(_num_bytes(pool), sizes - given, given)


def _samples_like(counts: Sequence[int] | np.ndarray) -> Any:
    """An example of the samples that each client sends, in the form of the server's own."""

    def like(client: int, own: Federation) -> Rows:
        nothing = torch.zeros(0, dtype=torch.int64, device=own.train.labels.device)
        form = lambda leaf: Field((int(counts[client]), *leaf.shape[1:]), leaf.dtype)  # noqa: E731
        inputs, targets = own.train.gather(nothing), trees.rows(own.train.targets, nothing)
        return trees.map_leaves(form, inputs), trees.map_leaves(form, targets)

    return like


def answer_of_shuffle(step: str, messages: Mapping[int, Any], host: DataHost, keep_own: bool) -> dict[int, Any]:
    """The clients' part, after they have generated samples."""
    if step == "send":
        return {client: _rows(host.memory["sets"][client], rows) for client, rows in messages.items()}
    if step == "keep":
        messages = {client: _rows(host.memory["sets"][client], rows) for client, rows in messages.items()}
    if step == "give":
        return _give(messages, host)
    return _receive(messages, host, keep_own)


def _give(messages: Mapping[int, tuple[Tensor, int]], host: DataHost) -> dict[int, Any]:
    """The samples that each client gives, which it keeps no longer."""
    federation = host.federation
    parts, answers = [federation.partition.indices[:0]] * federation.num_clients, {}
    for client, (positions, count) in messages.items():
        order = federation.partition.client(client)[positions.numpy()]
        parts[client] = order[count:]
        rows = torch.from_numpy(order[:count]).to(federation.train.labels.device)
        answers[client] = (federation.train.gather(rows), trees.rows(federation.train.targets, rows))
    host.federation = replace(federation, partition=Partition.from_clients(parts), whole=federation.split)
    return answers


def _receive(messages: Mapping[int, Rows], host: DataHost, keep_own: bool) -> dict[int, Any]:
    """Add the received samples to the clients' data, and answer with the number of each client."""
    federation, train, first = host.federation, host.federation.train, len(host.federation.train)
    own, received = ([federation.partition.indices[:0]] * federation.num_clients for _ in range(2))
    for client, rows in messages.items():
        if keep_own:
            own[client] = federation.partition.client(client)
        received[client] = np.arange(first, first + len(trees.first_leaf(rows[1])))
        first += len(received[client])
    inputs, targets = (
        pytree.tree_map(_appended, stored, *added)
        for stored, *added in zip((train.inputs, train.targets), *messages.values(), strict=True)
    )
    host.federation = replace(
        federation,
        train=Samples(inputs, targets),
        partition=Partition.from_clients([np.concatenate(pair) for pair in zip(own, received, strict=True)]),
        whole=federation.split,  # papers cite the split of the real samples
    )
    host.exchange = SampleExchange(
        host.federation,
        folder=host.memory.get("folder"),
        before=federation.partition,
        own=Partition.from_clients(own),
        received=Partition.from_clients(received),
    )
    return {client: len(received[client]) for client in messages}


def _appended(stored: Any, *added: Tensor) -> Any:
    if isinstance(stored, Tensor):
        return torch.cat([stored, *(part.to(stored) for part in added)])
    return JointInputs(stored, torch.cat(added).numpy())


def _summary(num_bytes: int, own: np.ndarray, received: np.ndarray) -> ExchangeSummary:
    shares = received / np.maximum(own + received, 1)
    note = f"Fedssyn: {shares.min():.1%} to {shares.max():.1%} of a client's samples come from the exchange"
    return ExchangeSummary((num_bytes, num_bytes), note)


def _rows(samples: Rows, rows: Any) -> Rows:
    index = torch.from_numpy(rows) if isinstance(rows, np.ndarray) else rows
    inputs, targets = (pytree.tree_map(lambda leaf: torch.as_tensor(leaf[index]), part) for part in samples)
    return inputs, targets


def _joined(parts: Sequence[Rows]) -> Rows:
    """The samples of several clients, one after another."""
    inputs, targets = (
        pytree.tree_map(lambda *leaves: torch.cat([leaf.cpu() for leaf in leaves]), *side) for side in zip(*parts, strict=True)
    )
    return inputs, targets


def _num_bytes(pool: Rows) -> int:
    """The bytes of labelled samples in a message: inputs as stored, and eight bytes for a label.

    >>> _num_bytes((torch.zeros(3, 4, dtype=torch.uint8), torch.zeros(3)))
    36
    """
    return trees.num_bytes(pool[0]) + 8 * trees.num_rows(pool[0])
