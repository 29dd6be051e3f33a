"""What a ``DataLoader`` of the user's contributes to a federation: its samples, batch size and ``collate_fn``."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    default_collate,
)

from flcog.core.global_streams import seeded
from flcog.data.order import Order
from flcog.datamodules.items import as_array
from flcog.datamodules.torch_dataset import require_map_style
from flcog.datamodules.whole_batches import ListedItems, WholeBatches, only

MOST_STREAMED = 1_000_000
"""The most items of a stream."""


class ReadLoader(NamedTuple):
    """A loader as a federation uses it.

    Args:
        dataset: of the samples that its sampler chooses.
        rows: their indices in the loader's own data set; None for all.
        batch_size: that of its batch sampler, or the length of the sampler's first batch if it has no such attribute.
        drop_last: whether the last, smaller batch is dropped.
        collate_fn: the user's; None for torch's own.
        unused: the name of a sampler of a set that is evaluated, which is not used, or of which only the indices are; empty for none.
        order: the order in which clients read the samples; None if they shuffle them.
        counts: the number of samples of each loader, if these are several; else empty.
    """

    dataset: Any
    rows: np.ndarray | None
    batch_size: int
    drop_last: bool
    collate_fn: Callable[[list[Any]], Any] | None
    unused: str
    order: Order | None = None
    counts: tuple[int, ...] = ()

    def of_its_rows(self, values: Any) -> Any:
        """Values of the loader's own data set (an array, or a function of the index) for the chosen samples."""
        if self.rows is None or values is None or isinstance(values, str | Mapping):
            return values
        if callable(values):
            return [values(int(row)) for row in self.rows]
        array = as_array(values)
        return array if len(array) == len(self.rows) else array[self.rows]


def read_loaders(loaders: Sequence[DataLoader], part: str) -> ReadLoader:
    """Read the loaders of a set. Several have their data sets one after another, and the largest of their batch sizes."""
    read = [read_loader(loader, part) for loader in loaders]
    first = read[0]
    if len(read) == 1:
        return first
    if any(each.collate_fn != first.collate_fn for each in read):
        raise ValueError(
            f"the {part} loaders have different collate_fns, and an evaluation uses one for all of them: give them the same function"
        )
    return first._replace(
        dataset=ConcatDataset([each.dataset for each in read]),
        rows=_rows_of_all(loaders, read),
        batch_size=max(each.batch_size for each in read),
        unused=", ".join(dict.fromkeys(each.unused for each in read if each.unused)),
        counts=tuple(len(each.dataset) for each in read),
    )


def _rows_of_all(loaders: Sequence[DataLoader], read: Sequence[ReadLoader]) -> np.ndarray | None:
    """The rows that the samplers choose, counted over the data sets of all loaders; None for all."""
    if all(each.rows is None for each in read):
        return None
    sizes = [len(loader.dataset) for loader in loaders]  # type: ignore[arg-type]
    rows = [np.arange(size) if each.rows is None else each.rows for size, each in zip(sizes, read, strict=True)]
    return np.concatenate([start + chosen for start, chosen in zip(np.cumsum([0, *sizes[:-1]]), rows, strict=True)])


def read_loader(loader: DataLoader, part: str) -> ReadLoader:
    """Read a loader. The items of a stream are read once, into memory."""
    loader = _of_a_set(loader, part)
    require_map_style(loader.dataset, part)
    batches, count = loader.batch_sampler, len(loader.dataset)  # type: ignore[arg-type]
    sampler = getattr(batches, "sampler", None)
    rows = None
    if (indices := getattr(sampler, "indices", None)) is not None:
        rows = None if np.array_equal(np.sort(indices), np.arange(count)) else np.asarray(indices)
    shuffles = type(batches) is BatchSampler and (_is_shuffle(sampler, count) or type(sampler) is SubsetRandomSampler)
    order = None if shuffles or part != "train" else Order(batches, np.arange(count) if rows is None else rows)
    unused = "" if shuffles or order is not None or isinstance(sampler, SequentialSampler) else type(sampler).__name__
    size, drops = (
        getattr(batches, "batch_size", None) or _length_of_first(batches, part),
        bool(getattr(batches, "drop_last", False)),
    )
    if drops and part != "train" and type(batches) is BatchSampler:
        if type(sampler) is SequentialSampler:
            rows = _without_last(len(sampler), size, part)
        else:
            unused = unused or "drop_last"
    return ReadLoader(
        dataset=loader.dataset if rows is None else Subset(loader.dataset, rows.tolist()),
        rows=rows,
        batch_size=size,
        drop_last=drops,
        collate_fn=None if loader.collate_fn is default_collate else loader.collate_fn,
        unused=unused if order is not None or type(batches) is BatchSampler else type(batches).__name__,
        order=order,
    )


def _of_a_set(loader: DataLoader, part: str) -> DataLoader:
    """The loader, of single items in a data set: those of a stream are read, and whole batches are items."""
    dataset: Any = loader.dataset
    if streamed := isinstance(dataset, IterableDataset):
        with seeded(0):
            dataset = ListedItems(list(islice(dataset, MOST_STREAMED + 1)))
        if len(dataset) > MOST_STREAMED:
            raise ValueError(
                f"{part} is a stream of more than {MOST_STREAMED:,} items, which are held in memory to divide them over clients: give a "
                "map-style data set"
            )
    if loader.batch_sampler is None or (streamed and loader.batch_size is None):
        batches, collate_fn = WholeBatches(dataset), partial(only, loader.collate_fn)
        return DataLoader(batches, 1, sampler=None if streamed else loader.sampler, collate_fn=collate_fn)
    if not streamed:
        return loader
    return DataLoader(dataset, loader.batch_size, drop_last=loader.drop_last, collate_fn=loader.collate_fn)


def _without_last(count: int, size: int, part: str) -> np.ndarray | None:
    """The rows of a set that is evaluated without its last, smaller batch; None for all."""
    if count < size:
        raise ValueError(f"the {part} loader drops its only batch, {count} of {size} samples: leave drop_last=True out there")
    return np.arange(count - count % size) if count % size else None


def _length_of_first(batches: Any, part: str) -> int:
    """The number of samples in the first batch of a sampler without the attribute ``batch_size``."""
    try:
        if length := len(next(iter(batches))):
            return length
        fault = "it is empty"
    except Exception as error:  # of the user's sampler
        fault = repr(error)
    raise ValueError(
        f"the {part} loader's batch_sampler, a {type(batches).__name__}, has no batch_size, and its first batch cannot be counted "
        f"({fault}): give it the attribute batch_size"
    )


def _is_shuffle(sampler: Any, count: int) -> bool:
    """Whether a sampler takes each of ``count`` samples once."""
    return isinstance(sampler, RandomSampler) and not sampler.replacement and sampler.num_samples == count
