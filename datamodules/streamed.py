"""Inputs that worker processes read while the model trains."""

import threading
from concurrent.futures import Future
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

from flcog.core.source import Source
from flcog.core.trees import Tree, rows, unlike_structures
from flcog.datamodules.items import inputs_of
from flcog.datamodules.workers import Make, Workers, result_of

MOST_PENDING = 256
"""Requests that were announced and not read yet; older ones, of a round that was dropped, are forgotten."""


class Streamed(Source):
    """The inputs of one set, which its workers read.

    Args:
        workers: the processes that read.
        part: the set's name.
        length: how many samples it has.
        whole_batches: whether the user's ``collate_fn`` makes a batch from all its items at once.
        make: makes a batch.
        evaluated: the workers' name of the set for evaluations, which read without keys; ``part`` by default.
    """

    def __init__(
        self, workers: Workers, part: str, length: int, whole_batches: bool, make: Make = inputs_of, evaluated: str | None = None
    ) -> None:
        self._workers, self._part, self._length, self._make = workers, part, length, make
        self._evaluated = evaluated or part
        self.whole_batches, self.draws_here = whole_batches, workers.count == 0
        # A block of samples is shared out among the workers, a batch of the user's is one worker's.
        self.ahead = 2 * workers.count if whole_batches else 2 * (workers.count > 0)
        self._pending: dict[tuple[bytes, bytes], list[Future[Any]]] = {}
        self._changing = threading.Lock()  # clients on several threads read at once

    def __len__(self) -> int:
        return self._length

    def expect(self, indices: np.ndarray, keys: np.ndarray | None) -> None:
        name = _name(indices, keys)
        if self._workers.count and name not in self._pending:
            chosen, chosen_keys, _ = self._distinct(indices, keys)
            with self._changing:
                self._pending[name] = self._ask(chosen, chosen_keys)
                if len(self._pending) > MOST_PENDING:
                    self._pending.pop(next(iter(self._pending)))

    def read(self, indices: np.ndarray, keys: np.ndarray | None) -> Tree:
        chosen, chosen_keys, places = self._distinct(indices, keys)
        with self._changing:
            asked = self._pending.pop(_name(indices, keys), None)
        asked = asked or self._ask(chosen, chosen_keys)
        parts = [result_of(pending, self._part) for pending in asked]
        if odd := unlike_structures(parts):
            raise ValueError(f"the {self._part} set: {odd}; give all items the same parts, or a collate_fn")
        inputs = parts[0] if len(parts) == 1 else pytree.tree_map(lambda *leaves: torch.cat(leaves), *parts)
        return inputs if places is None else rows(inputs, torch.from_numpy(places))

    def _distinct(self, indices: np.ndarray, keys: np.ndarray | None) -> tuple[np.ndarray, np.ndarray | None, np.ndarray | None]:
        """Each sample once, with its key, and where it is wanted: the rows that pad a batch repeat another."""
        _, first, places = np.unique(indices if keys is None else keys, return_index=True, return_inverse=True)
        if self.whole_batches or len(first) == len(indices):
            return indices, keys, None
        return indices[first], None if keys is None else keys[first], places

    def _ask(self, indices: np.ndarray, keys: np.ndarray | None) -> list[Future[Any]]:
        shares = 1 if self.whole_batches else min(max(1, self._workers.count), len(indices))
        groups = np.array_split(np.arange(len(indices)), shares)
        return [
            self._workers.submit(self._evaluated, self._make, indices[group])
            if keys is None
            else self._workers.submit(self._part, self._make, indices[group], keys[group])
            for group in groups
        ]


def _name(indices: np.ndarray, keys: np.ndarray | None) -> tuple[bytes, bytes]:
    return indices.tobytes(), b"" if keys is None else keys.tobytes()
