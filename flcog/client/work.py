"""Batches of local training: each client's steps and the samples it reads, drawn for the whole cohort at once."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from flcog.core.randomness import epoch_orders, fold, fold_each, hash64
from flcog.core.trees import rows
from flcog.core.types import Batch, Params, Slot
from flcog.data import Federation
from flcog.data.batching import Batching
from flcog.reading import Reader, Request


@dataclass
class ClientWork:
    """One client's part in a round.

    ``own`` are the client's training-set indices. ``order`` lists those it reads, in order; step t takes
    ``order[starts[t] : starts[t] + sizes[t]]``. What methods keep of the client, and its randomness, are handed over when they are
    asked for: until then they may be on their way to the device.
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
    masks: Params = field(default_factory=dict)
    hand_slots: Callable[[], list[Slot]] = list
    hand_draws: Callable[[], list[Slot]] = list

    @property
    def slots(self) -> list[Slot]:
        """What is kept of the client, by method, on the device."""
        return self.hand_slots()

    @property
    def draws(self) -> list[Slot]:
        """Its randomness of this round, by method, on the device."""
        return self.hand_draws()


def make_work(
    federation: Federation,
    batching: Batching,
    clients: Sequence[int],
    num_steps: Sequence[int],
    weights: Sequence[float],
    seed: int,
    round: int,
) -> list[ClientWork]:
    """Every client's batches. The draws depend on (seed, round, client) only: not on the cohort, the executor or the process."""
    ids = np.asarray(clients, dtype=np.int64)
    partition = federation.partition
    starts_in_partition = partition.offsets[ids]
    num_samples = partition.offsets[ids + 1] - starts_in_partition
    layouts: dict[tuple[int, int], tuple[np.ndarray, np.ndarray, int]] = {}
    for pair in zip(num_samples.tolist(), num_steps, strict=True):
        if pair not in layouts:
            layouts[pair] = batching.layout(*pair)
    chosen = [layouts[pair] for pair in zip(num_samples.tolist(), num_steps, strict=True)]
    passes = np.array([layout[2] for layout in chosen], dtype=np.int64)
    order, offsets = epoch_orders(fold_each(fold(seed, round, "order"), ids), num_samples, passes)
    order = partition.indices[order + np.repeat(starts_in_partition, np.diff(offsets))]
    keys = None
    if federation.needs_keys:
        counter = np.arange(len(order)) - np.repeat(offsets[:-1], np.diff(offsets))
        per_client = fold_each(fold(seed, round, "augment"), ids)
        keys = hash64(np.repeat(per_client, np.diff(offsets)) ^ hash64(counter.astype(np.uint64)))
    bounds = offsets.tolist()
    return [
        ClientWork(
            client=client,
            num_samples=samples,
            num_steps=steps,
            weight=weight,
            own=partition.client(client),
            order=order[begin:end],
            starts=layout[0],
            sizes=layout[1],
            keys=None if keys is None else keys[begin:end],
        )
        for client, samples, steps, weight, layout, begin, end in zip(
            ids.tolist(), num_samples.tolist(), num_steps, weights, chosen, bounds, bounds[1:], strict=False
        )
    ]


BLOCK_BYTES = 8 * 2**20
"""Batches are read this much at a time: one gather a block instead of one a step, small enough to stay near a CPU's cache."""

ACCELERATOR_BLOCK_BYTES = 256 * 2**20
"""The same on an accelerator, where a gather, and the random numbers of augmented images, cost the same whatever their size."""


def samples_per_block(reader: Reader) -> int:
    """How many samples are read at once, if that is more than a batch."""
    block = BLOCK_BYTES if reader.device.type == "cpu" else ACCELERATOR_BLOCK_BYTES
    return 0 if reader.whole_batches else block // max(1, reader.bytes_per_sample)


def batches(work: ClientWork, reader: Reader) -> Iterator[Batch]:
    """One client's local batches, gathering many steps' samples at once and slicing."""
    starts, sizes, blocks = work.starts.tolist(), work.sizes.tolist(), list(_blocks(work, reader))
    loaded = reader.each(reader.federation.train, (_request(work, begin, end) for _, begin, end in blocks))
    for (steps, begin, _), (inputs, targets) in zip(blocks, loaded, strict=True):
        for step in steps:
            own = slice(starts[step] - begin, starts[step] - begin + sizes[step])
            yield Batch(rows(inputs, own), rows(targets, own))


def announce(work: ClientWork, reader: Reader) -> None:
    """Tell the reader what the client will read first."""
    if reader.source is not None or reader.copies_ahead:
        _, begin, end = next(_blocks(work, reader))
        reader.expect(_request(work, begin, end))


def _blocks(work: ClientWork, reader: Reader) -> Iterator[tuple[range, int, int]]:
    """Steps that are read together, with where their samples begin and end in the client's order."""
    most = samples_per_block(reader)
    starts, sizes, step = work.starts.tolist(), work.sizes.tolist(), 0
    while step < work.num_steps:
        first, begin = step, starts[step]
        while step < work.num_steps and (step == first or starts[step] + sizes[step] - begin <= most):
            step += 1
        yield range(first, step), begin, starts[step - 1] + sizes[step - 1]


def _request(work: ClientWork, begin: int, end: int) -> Request:
    return work.order[begin:end], None if work.keys is None else work.keys[begin:end]


def stacked_positions(
    works: Sequence[ClientWork], first: int, last: int, width: int | None = None
) -> tuple[np.ndarray, np.ndarray | None]:
    """Positions in each work's ``order`` of steps ``first`` to ``last``, padded: [K, steps, B], and the mask of real rows.

    Padding, and steps past a client's last, point at the client's first sample; the mask is None if there is none. B is ``width``, or
    the largest batch.
    """
    steps = range(first, last)
    width = width or max(int(work.sizes.max()) for work in works)
    starts = np.zeros((len(works), len(steps)), np.int64)
    sizes = np.zeros((len(works), len(steps)), np.int64)
    for k, work in enumerate(works):
        alive = max(0, min(last, work.num_steps) - first)
        starts[k, :alive] = work.starts[first : first + alive]
        sizes[k, :alive] = work.sizes[first : first + alive]
    within = np.arange(width)
    mask = within < sizes[:, :, None]
    positions = np.where(mask, starts[:, :, None] + within, 0)
    return positions, None if mask.all() else mask
