"""The batches of a chunk of clients, stacked: [clients, rows, ...] for each local step."""

from collections.abc import Iterator, Sequence
from itertools import tee
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from flcog.client.work import ClientWork, samples_per_block, stacked_positions
from flcog.core.copies import sent
from flcog.core.trees import Tree, map_leaves, rows, unlike_shapes
from flcog.reading import Reader


def stacked_batches(
    works: Sequence[ClientWork], reader: Reader, num_rows: int | None = None
) -> Iterator[tuple[Tree, Tree, Tensor | None]]:
    """Every step's inputs, targets and mask, reading several steps at a time.

    Which rows belong to which step, and the masks, are worked out and moved to the device before the first step: an accelerator that
    was handed a few numbers at each step would have to wait for them. Only a mask's shape is asked for at a step, and that is known
    here, without asking the device.

    Args:
        works: the chunk's clients; the first has the most steps.
        reader: reads their samples.
        num_rows: if given, every batch has so many, and a mask.
    """
    num_steps, width = works[0].num_steps, num_rows or _width(works)
    positions, mask = stacked_positions(works, 0, num_steps, width)
    if num_rows is not None and mask is None:
        mask = np.ones(positions.shape, bool)
    masks = None if mask is None else sent(torch.from_numpy(mask), reader.device)
    firsts = _firsts(works, reader, width)
    per_block = firsts.step
    loaded = _stacked(reader, _requests(works, positions, reader, firsts))
    for first, (inputs, targets) in zip(firsts, loaded, strict=True):
        for step in range(first, min(num_steps, first + per_block)):
            # Cut to the step's largest batch: where all clients' batches are shorter, BatchNorm must not feel padding.
            height = width if mask is None or num_rows else int(mask[:, step].sum(1).max())
            full = mask is None or (not num_rows and mask[:, step, :height].all())
            counts = None if full or masks is None else masks[:, step, :height].to(torch.get_default_dtype())
            own = (slice(None), step - first, slice(height))
            yield rows(inputs, own), rows(targets, own), counts


def announce_chunk(works: Sequence[ClientWork], reader: Reader, num_rows: int | None = None) -> None:
    """Tell the reader what a chunk of clients will read first, where that is copied while another chunk trains."""
    if works and reader.copies_ahead and not reader.whole_batches:
        width = num_rows or _width(works)
        firsts = _firsts(works, reader, width)[:1]
        positions, _ = stacked_positions(works, 0, min(firsts.step, works[0].num_steps), width)
        indices, keys = next(_requests(works, positions, reader, firsts))
        reader.expect((indices.ravel(), None if keys is None else keys.ravel()))


def _width(works: Sequence[ClientWork]) -> int:
    return max(int(work.sizes.max()) for work in works)


def _firsts(works: Sequence[ClientWork], reader: Reader, width: int) -> range:
    """The first of the steps that are read together."""
    return range(0, works[0].num_steps, max(1, samples_per_block(reader) // (width * len(works))))


def _requests(
    works: Sequence[ClientWork], positions: np.ndarray, reader: Reader, firsts: range
) -> Iterator[tuple[Any, np.ndarray | None]]:
    """What is read together, block by block: indices [clients, steps, rows], on the device where the set is stored there, and keys."""
    lengths = np.array([len(work.order) for work in works])
    places = positions + (np.cumsum(lengths) - lengths)[:, None, None]
    indices = reader.placed(np.concatenate([work.order for work in works])[places])
    drawn = [work.keys for work in works if work.keys is not None]
    keys = np.concatenate(drawn)[places] if drawn else None
    for first in firsts:
        block = (slice(None), slice(first, first + firsts.step))
        yield indices[block], None if keys is None else keys[block]


def _stacked(reader: Reader, requests: Iterator[tuple[Any, np.ndarray | None]]) -> Iterator[tuple[Tree, Tree]]:
    """What is read for indices [K, steps, B], with these axes."""
    train = reader.federation.train
    if reader.whole_batches:
        for indices, keys in requests:
            own = [(row.ravel(), None if keys is None else keys[k].ravel()) for k, row in enumerate(indices)]
            yield by_client(_together(list(reader.each(train, own))), indices.shape)
        return
    asked, flat = tee(requests)
    loaded = reader.each(train, ((indices.ravel(), None if keys is None else keys.ravel()) for indices, keys in flat))
    for (indices, _), batch in zip(asked, loaded, strict=True):
        yield by_client(batch, indices.shape)


def _together(batches: list[tuple[Tree, Tree]]) -> tuple[Tree, Tree]:
    """Batches that each client has read for itself, one after another."""
    if obstacle := unlike_shapes([inputs for inputs, _ in batches]):
        raise ValueError(f"{obstacle}: let collate_fn pad to one length, or use executor=loop")
    joined: tuple[Tree, Tree] = pytree.tree_map(lambda *leaves: torch.cat(leaves), *batches)
    return joined


def by_client(batch: tuple[Tree, Tree], shape: tuple[int, ...]) -> tuple[Tree, Tree]:
    """Inputs and targets whose first axis is the clients', steps' and rows' again."""
    inputs, targets = (map_leaves(lambda leaf: leaf.unflatten(0, shape), part) for part in batch)
    return inputs, targets
