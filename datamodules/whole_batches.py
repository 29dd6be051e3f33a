"""Data sets whose items are whole batches, and those of a stream, which is read once."""

from collections.abc import Callable, Sequence
from typing import Any

from torch.utils.data import Dataset


class ListedItems(Dataset):
    """Items in memory.

    Args:
        items: in their order.
    """

    def __init__(self, items: Sequence[Any]) -> None:
        self._items = items

    def __len__(self) -> int:
        return len(self._items)

    def __getitem__(self, index: int) -> Any:
        return self._items[index]


class WholeBatches(ListedItems):
    """Items that are batches. Clients share the batches out among themselves."""


def only(convert: Callable[[Any], Any] | None, batches: list[Any]) -> Any:
    """The only batch of a list, as ``collate_fn`` of a loader of batches."""
    (batch,) = batches
    return batch if convert is None else convert(batch)
