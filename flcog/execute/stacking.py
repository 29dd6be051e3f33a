"""The batches of a chunk of clients, padded to equal size and stacked: [clients, rows, ...] for each local step."""

from collections.abc import Iterator, Sequence
from itertools import tee
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from flcog.client.work import ClientWork, samples_per_block
from flcog.core.precision import sent
from flcog.core.trees import Tree, map_leaves, rows
from flcog.data.reading import Reader


def stacked_batches(
    works: Sequence[ClientWork], reader: Reader, num_rows: int | None = None
) -> Iterator[tuple[Tree, Tree, Tensor | None]]:
    """The inputs, targets and mask of each step; with ``num_rows``, every batch has so many rows, and a mask.

    Several steps are read at a time. The first client has the most steps.

    The rows of all steps, and the masks, are computed and moved to the device before the first step, because an accelerator would
    wait for numbers that arrive at each step. A step needs only the shape of its mask, which is known without the device.
    """
    num_steps, width = works[0].num_steps, num_rows or max(int(work.sizes.max()) for work in works)
    positions, mask = stacked_positions(works, num_steps, width)
    if num_rows is not None and mask is None:
        mask = np.ones(positions.shape, bool)
    masks = None if mask is None else sent(torch.from_numpy(mask), reader.device)
    per_block = max(1, samples_per_block(reader) // (width * len(works)))  # steps that are read together
    firsts = range(0, num_steps, per_block)
    loaded = _stacked(works, reader, _requests(works, positions, reader, firsts))
    for first, (inputs, targets) in zip(firsts, loaded, strict=True):
        for step in range(first, min(num_steps, first + per_block)):
            # Cut to the step's largest batch: if all clients' batches are shorter, BatchNorm must not see padding.
            height = width if mask is None or num_rows else int(mask[:, step].sum(1).max())
            full = mask is None or (not num_rows and mask[:, step, :height].all())
            counts = None if full or masks is None else masks[:, step, :height].to(torch.get_default_dtype())
            own = (slice(None), step - first, slice(height))
            yield rows(inputs, own), rows(targets, own), counts


def stacked_positions(works: Sequence[ClientWork], num_steps: int, width: int) -> tuple[np.ndarray, np.ndarray | None]:
    """The padded positions of the first steps in each ``order``, [clients, steps, width], and the mask of real rows.

    Padding, and steps after a client's last, point at the client's first sample. The mask is None if all rows are real.
    """
    starts, sizes = np.zeros((2, len(works), num_steps), np.int64)
    for k, work in enumerate(works):
        alive = min(num_steps, work.num_steps)
        starts[k, :alive], sizes[k, :alive] = work.starts[:alive], work.sizes[:alive]
    within = np.arange(width)
    mask = within < sizes[:, :, None]
    positions = np.where(mask, starts[:, :, None] + within, 0)
    return positions, None if mask.all() else mask


def _requests(
    works: Sequence[ClientWork], positions: np.ndarray, reader: Reader, firsts: range
) -> Iterator[tuple[Any, np.ndarray | None]]:
    """Each block's indices [clients, steps, rows], on the device if the set is stored there, and its keys."""
    lengths = np.array([len(work.order) for work in works])
    places = positions + (np.cumsum(lengths) - lengths)[:, None, None]
    indices = reader.placed(np.concatenate([work.order for work in works])[places])
    drawn = [work.keys for work in works if work.keys is not None]
    keys = np.concatenate(drawn)[places] if drawn else None
    for first in firsts:
        block = (slice(None), slice(first, first + firsts.step))
        yield indices[block], None if keys is None else keys[block]


def _stacked(
    works: Sequence[ClientWork], reader: Reader, requests: Iterator[tuple[Any, np.ndarray | None]]
) -> Iterator[tuple[Tree, Tree]]:
    """The inputs and targets for indices [clients, steps, rows], with these axes."""
    train = reader.federation.train
    if reader.whole_batches:
        for indices, keys in requests:
            own = [(row.ravel(), None if keys is None else keys[k].ravel()) for k, row in enumerate(indices)]
            joined = pytree.tree_map(lambda *parts: torch.cat(parts), *reader.each(train, own))
            yield by_client(joined, indices.shape)
        return
    asked, flat = tee(requests)
    loaded = reader.each(train, ((indices.ravel(), None if keys is None else keys.ravel()) for indices, keys in flat))
    for (indices, _), batch in zip(asked, loaded, strict=True):
        yield by_client(batch, indices.shape)


def by_client(batch: tuple[Tree, Tree], shape: tuple[int, ...]) -> tuple[Tree, Tree]:
    """Inputs and targets with axes of clients, steps and rows in place of the first axis."""
    inputs, targets = (map_leaves(lambda leaf: leaf.unflatten(0, shape), part) for part in batch)
    return inputs, targets
