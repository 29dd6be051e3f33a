"""The batches of local training: each client's steps and samples, drawn for the whole cohort at once."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from flcog.client.messages import ClientTask
from flcog.core.randomness import epoch_orders, fold, fold_each, hash64
from flcog.core.trees import rows
from flcog.core.types import Batch, Params, Slot
from flcog.data import Federation
from flcog.data.batching import Batching
from flcog.data.order import Order
from flcog.data.reading import Reader, Request


@dataclass
class ClientWork:
    """The work of one client in a round.

    ``own`` are the indices of the client's training set. ``order`` lists the indices in reading order; batch t is
    ``order[starts[t] : starts[t] + sizes[t]]``. ``ends`` says after which batches the optimiser steps; None stands for each of them.
    ``states()`` and ``draws()`` are the client's state and random numbers for each method. ``residuals()``, which are needed after
    training, are its residuals by the position of their stage among the methods. All three are on the device, to which they may be
    copied in the meantime. ``received`` are methods' messages to this client alone, and ``training`` is the state that Lightning's loops
    have kept since the client's last round.
    """

    client: int
    num_samples: int
    num_steps: int
    weight: float
    own: np.ndarray
    order: np.ndarray
    starts: np.ndarray
    sizes: np.ndarray
    keys: np.ndarray | None = None
    ends: np.ndarray | None = None
    masks: Params = field(default_factory=dict)
    received: Mapping[str, Slot] = field(default_factory=dict)
    states: Callable[[], list[Slot]] = list
    draws: Callable[[], list[Slot]] = list
    residuals: Callable[[], dict[int, Slot]] = dict
    training: Slot = field(default_factory=dict)

    @property
    def num_batches(self) -> int:
        return self.num_steps if self.ends is None else len(self.starts)

    def part(self, number: int, count: int) -> "ClientWork":
        """The work of one of the processes that train the client together: equal parts of each batch, whose first samples fill up."""
        if count == 1:
            return self
        sizes = -(-self.sizes // count)
        starts = np.cumsum(sizes) - sizes
        within = np.arange(sizes.sum()) - np.repeat(starts, sizes)
        mine = (within + np.repeat(number * sizes, sizes)) % np.repeat(self.sizes, sizes) + np.repeat(self.starts, sizes)
        keys = None if self.keys is None else self.keys[mine]
        return replace(self, order=self.order[mine], starts=starts, sizes=sizes, keys=keys)


def make_work(federation: Federation, batching: Batching, tasks: Sequence[ClientTask], seed: int, round: int) -> list[ClientWork]:
    """The batches of each client. Draws depend on the seed, the round and the client alone."""
    ids = np.asarray([task.client for task in tasks], dtype=np.int64)
    partition = federation.partition
    starts_in_partition = partition.offsets[ids]
    num_samples = partition.offsets[ids + 1] - starts_in_partition
    pairs = [(size, task.num_steps) for size, task in zip(num_samples.tolist(), tasks, strict=True)]
    layouts = {pair: batching.layout(*pair) for pair in dict.fromkeys(pairs)}
    chosen = [layouts[pair] for pair in pairs]
    if batching.order is not None:
        owned = [partition.client(int(k)) for k in ids]
        order, offsets, chosen = _in_order(batching, batching.order, owned, [len(layout[0]) for layout in chosen], seed, round)
    else:
        passes = np.array([layout[2] for layout in chosen], dtype=np.int64)
        order, offsets = epoch_orders(fold_each(fold(seed, round, "order"), ids), num_samples, passes, batching.shuffle)
        order = partition.indices[order + np.repeat(starts_in_partition, np.diff(offsets))]
    keys = None
    if federation.needs_keys:
        counter = np.arange(len(order)) - np.repeat(offsets[:-1], np.diff(offsets))
        per_client = fold_each(fold(seed, round, "augment"), ids)
        keys = hash64(np.repeat(per_client, np.diff(offsets)) ^ hash64(counter.astype(np.uint64)))
    bounds = offsets.tolist()
    return [
        ClientWork(
            client=task.client,
            num_samples=samples,
            num_steps=task.num_steps,
            weight=task.weight,
            own=partition.client(task.client),
            order=order[begin:end],
            starts=layout[0],
            sizes=layout[1],
            keys=None if keys is None else keys[begin:end],
            ends=batching.ends(samples, len(layout[0])) if batching.accumulate > 1 else None,
        )
        for task, samples, layout, begin, end in zip(tasks, num_samples.tolist(), chosen, bounds, bounds[1:], strict=False)
    ]


def _in_order(
    batching: Batching, order: Order, owned: Sequence[np.ndarray], counts: Sequence[int], seed: int, round: int
) -> tuple[np.ndarray, np.ndarray, list[Any]]:
    """The samples of all clients as a user's sampler reads them, their bounds, and each client's starts and sizes of batches."""
    passes = list[Any]()
    taken = list[list[np.ndarray]]()
    for own, count in zip(owned, counts, strict=True):
        found, number = list[np.ndarray](), 0
        most = count if batching.local_steps is not None else batching.batches_per_epoch(len(own))
        while len(found) < count:
            if number == len(passes):
                passes.append(order.draw(fold(seed, round, "pass", number) >> 1, round))
            found += order.of_client(passes[number], own)[: min(most, count - len(found))]
            number += 1
            if not found and number > MOST_EMPTY_PASSES:
                raise ValueError(f"the loader's sampler drew none of a client's {len(own)} samples in {number} passes")
        taken.append(found)
    sizes = [np.array([len(batch) for batch in found]) for found in taken]
    offsets = np.concatenate([[0], np.cumsum([size.sum() for size in sizes])])
    starts = [np.cumsum(size) - size for size in sizes]
    return np.concatenate([batch for found in taken for batch in found]), offsets, list(zip(starts, sizes, strict=True))


MOST_EMPTY_PASSES = 100
"""Passes of a user's sampler without a sample of some client before an error says so."""

BLOCK_BYTES = 8 * 2**20
"""The bytes of a block of samples that are read at once: one gather serves several steps, and the block fits a CPU's cache."""

ACCELERATOR_BLOCK_BYTES = 256 * 2**20
"""The bytes of a block on an accelerator, where the time of gathering and augmenting hardly depends on the number of samples."""


def samples_per_block(reader: Reader) -> int:
    """The number of samples that are read at once; 0 for readers of whole batches."""
    block = BLOCK_BYTES if reader.device.type == "cpu" else ACCELERATOR_BLOCK_BYTES
    return 0 if reader.whole_batches else block // max(1, reader.bytes_per_sample)


def batches(work: ClientWork, reader: Reader) -> Iterator[Batch]:
    """The batches of one client. The samples of many steps are gathered at once and sliced."""
    starts, sizes, blocks = work.starts.tolist(), work.sizes.tolist(), list(_blocks(work, reader))
    loaded = reader.each(reader.federation.train, (_request(work, begin, end) for _, begin, end in blocks))
    for (steps, begin, _), (inputs, targets) in zip(blocks, loaded, strict=True):
        if reader.whole_batches:  # they are one batch each, whose parts may have other first axes
            yield Batch(inputs, targets)
            continue
        for step in steps:
            own = slice(starts[step] - begin, starts[step] - begin + sizes[step])
            yield Batch(rows(inputs, own), rows(targets, own))


def announce(work: ClientWork, reader: Reader) -> None:
    """Tell the reader which samples the client reads first."""
    if reader.source is not None:
        _, begin, end = next(_blocks(work, reader))
        reader.expect(_request(work, begin, end))


def _blocks(work: ClientWork, reader: Reader) -> Iterator[tuple[range, int, int]]:
    """Blocks of steps that are read together, each with the begin and end of its samples in the client's order."""
    most = samples_per_block(reader)
    starts, sizes, step = work.starts.tolist(), work.sizes.tolist(), 0
    while step < work.num_batches:
        first, begin = step, starts[step]
        while step < work.num_batches and (step == first or starts[step] + sizes[step] - begin <= most):
            step += 1
        yield range(first, step), begin, starts[step - 1] + sizes[step - 1]


def _request(work: ClientWork, begin: int, end: int) -> Request:
    return work.order[begin:end], None if work.keys is None else work.keys[begin:end]
