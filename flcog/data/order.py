"""Order: a user's own sampler reads a data set in it, and each client reads its part of the set in the same order."""

from typing import Any

import numpy as np
from torch.utils.data import BatchSampler

from flcog.core.global_streams import seeded
from flcog.core.randomness import fold


class Order:
    """The batches of a loader that does not simply shuffle. A client with all samples has the loader's batches.

    Others have their samples among them. They are cut into batches of the loader's size. The batches of an own batch sampler are cut
    down to the client's samples, and joined with the next ones up to their size. ``rows`` are the indices of the federation's samples
    in the loader's data set.
    """

    def __init__(self, batches: Any, rows: np.ndarray) -> None:
        self._batches, self._rows = batches, rows
        self._size = batches.batch_size if type(batches) is BatchSampler else None

    def only(self, rows: np.ndarray) -> "Order":
        """The order of some of the samples."""
        return Order(self._batches, self._rows[rows])

    def num_batches(self, samples: int) -> int:
        """The batches of a client with this number of samples in a pass."""
        if self._size is None:
            return max(1, round(len(self._batches) * samples / len(self._rows)))
        drawn = len(self._batches.sampler) * samples / len(self._rows)
        return max(1, int(drawn // self._size if self._batches.drop_last else -(-drawn // self._size)))

    def draw(self, seed: int, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """One pass over all samples: their places in the federation, and the number of each one's batch.

        The seed is that of the random streams and of the sampler's own generator. A sampler with ``set_epoch`` is told the epoch.
        """
        sampler: Any
        for sampler in (self._batches, getattr(self._batches, "sampler", None)):
            if getattr(sampler, "generator", None) is not None:
                sampler.generator.manual_seed(fold(seed, "generator") >> 1)
            if hasattr(sampler, "set_epoch"):
                sampler.set_epoch(epoch)
        with seeded(seed):
            batches = list(self._batches)
        drawn = np.concatenate([np.asarray(batch, np.int64) for batch in batches])
        known = np.sort(self._rows)
        places = np.argsort(self._rows)[np.searchsorted(known, drawn).clip(max=len(known) - 1)]
        ours = self._rows[places] == drawn
        return places[ours], np.repeat(np.arange(len(batches)), [len(batch) for batch in batches])[ours]

    def of_client(self, drawn: tuple[np.ndarray, np.ndarray], own: np.ndarray) -> list[np.ndarray]:
        """A client's batches in a pass that was drawn."""
        places, batch_of = drawn
        mine = np.isin(places, own)
        if self._size is not None:
            parts = np.split(places[mine], range(self._size, int(mine.sum()), self._size))
            whole = parts[:-1] if self._batches.drop_last and len(parts) > 1 and len(parts[-1]) < self._size else parts
            return [part for part in whole if len(part)]
        sizes, found, most = np.bincount(batch_of), list[np.ndarray](), 0
        for number in np.unique(batch_of[mine]):
            part = places[mine & (batch_of == number)]
            if found and len(found[-1]) + len(part) <= max(most, sizes[number]):
                found[-1], most = np.concatenate([found[-1], part]), max(most, sizes[number])
            else:
                found, most = [*found, part], sizes[number]
        return found
