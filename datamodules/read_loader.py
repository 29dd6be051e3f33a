"""What a ``DataLoader`` of the user's contributes to a federation: its samples, batch size and ``collate_fn``."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
from lightning.pytorch.utilities import CombinedLoader
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
from flcog.datamodules.torch_dataset import CollateFn

MOST = 1_000_000
"""The most items or batches of a stream, which are held in memory to divide them over clients."""


class WholeBatches(Subset):
    """A data set or a list whose items are batches. Clients share the batches out among themselves."""

    def __init__(self, batches: Any) -> None:
        super().__init__(batches, range(len(batches)))


class ReadLoader(NamedTuple):
    """A loader as a federation uses it."""

    dataset: Any  # of the samples that its sampler chooses
    rows: np.ndarray | None  # their indices in the loader's own data set; None for all
    batch_size: int
    drop_last: bool
    collate_fn: CollateFn | None
    unused: str  # the name of a sampler of a set that is evaluated, which is not used, or of which only the indices are
    order: Order | None = None  # in which clients read the samples; None if they shuffle them
    counts: tuple[int, ...] = ()  # the number of samples of each loader, if these are several

    def of_its_rows(self, values: Any) -> Any:
        """Values of the loader's own data set (an array, or a function of the index) for the chosen samples."""
        if self.rows is None or values is None or isinstance(values, str | Mapping):
            return values
        if callable(values):
            return [values(int(row)) for row in self.rows]
        array = as_array(values)
        return array if len(array) == len(self.rows) else array[self.rows]


def the_loaders(given: Any, part: str) -> list[DataLoader]:
    """A part's loaders, also from a list or a dict. The batches of several for training are joined, as Lightning does.

    Other objects that yield batches are read once, and so are joined ones. Clients share their batches out among themselves.
    """
    if given is None:
        return []
    loaders = list(given.values()) if isinstance(given, dict) else list(given) if isinstance(given, list | tuple) else [given]
    if part == "train" and len(loaders) > 1:
        loaders = [CombinedLoader(given, "max_size_cycle")]
    if part == "predict" and len(loaders) > 1:
        raise ValueError(f"predictions read one DataLoader; got a {type(given).__name__} of several: predict with one at a time")
    return [loader if isinstance(loader, DataLoader) else _of_batches(loader) for loader in loaders]


def _of_batches(loader: Iterable[Any]) -> DataLoader:
    """A loader of the batches of anything that yields them."""
    found = _read_once(loader)
    batches = [batch[0] for batch in found] if isinstance(loader, CombinedLoader) else found
    return DataLoader(WholeBatches(batches), batch_size=None, collate_fn=None)


def _read_once(stream: Iterable[Any]) -> list[Any]:
    with seeded(0):
        found = list(islice(stream, MOST + 1))
    if len(found) > MOST:
        raise ValueError(
            f"a {type(stream).__name__} yields more than {MOST:,} items, which memory must hold: give a map-style data set"
        )
    return found


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
        rows=None,
        batch_size=max(each.batch_size for each in read),
        unused=", ".join(dict.fromkeys(each.unused for each in read if each.unused)),
        counts=tuple(len(each.dataset) for each in read),
    )


def read_loader(loader: DataLoader, part: str) -> ReadLoader:
    """Read a loader. The items of a stream are read once, into memory."""
    loader = _of_a_set(loader)
    batches: Any = loader.batch_sampler
    sampler, count, rows = getattr(batches, "sampler", None), len(loader.dataset), None  # type: ignore[arg-type]
    if (indices := getattr(sampler, "indices", None)) is not None:
        rows = None if np.array_equal(np.sort(indices), np.arange(count)) else np.asarray(indices)
    is_plain = type(batches) is BatchSampler
    shuffles = is_plain and (_is_shuffle(sampler, count) or type(sampler) is SubsetRandomSampler)
    order, unused = None, ""
    if not shuffles and part == "train":
        order = Order(batches, np.arange(count) if rows is None else rows)
    elif not shuffles and not (is_plain and isinstance(sampler, SequentialSampler)):
        unused = type(sampler if is_plain else batches).__name__
    size = getattr(batches, "batch_size", None) or len(next(iter(batches)))
    drops = bool(getattr(batches, "drop_last", False))
    if drops and part != "train" and is_plain:
        if type(sampler) is not SequentialSampler:
            unused = unused or "drop_last"
        elif len(sampler) % size:
            rows = np.arange(len(sampler) // size * size)
    return ReadLoader(
        dataset=loader.dataset if rows is None else Subset(loader.dataset, rows.tolist()),
        rows=rows,
        batch_size=size,
        drop_last=drops,
        collate_fn=None if loader.collate_fn is default_collate else loader.collate_fn,
        unused=unused,
        order=order,
    )


def _of_a_set(loader: DataLoader) -> DataLoader:
    """The loader, of single items in a data set: those of a stream are read, and whole batches are items."""
    dataset: Any = loader.dataset
    if streamed := isinstance(dataset, IterableDataset):
        dataset = _read_once(dataset)
    if loader.batch_sampler is None or (streamed and loader.batch_size is None):
        batches, collate_fn = WholeBatches(dataset), partial(_only, loader.collate_fn)
        return DataLoader(batches, 1, sampler=None if streamed else loader.sampler, collate_fn=collate_fn)
    if not streamed:
        return loader
    return DataLoader(dataset, loader.batch_size, drop_last=loader.drop_last, collate_fn=loader.collate_fn)


def _only(convert: Callable[[Any], Any] | None, batches: list[Any]) -> Any:
    """The only batch of a list, as ``collate_fn`` of a loader of batches."""
    (batch,) = batches
    return batch if convert is None else convert(batch)


def _is_shuffle(sampler: Any, count: int) -> bool:
    """Whether a sampler takes each of ``count`` samples once."""
    return isinstance(sampler, RandomSampler) and not sampler.replacement and sampler.num_samples == count
