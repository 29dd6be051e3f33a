"""Reads the items of data sets by torch's ``DataLoader``, with random numbers that depend only on a key for each sample."""

import itertools
import signal
import threading
import weakref
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch._utils import ExceptionWrapper
from torch.utils import _pytree as pytree
from torch.utils.data import DataLoader, Dataset, Sampler

from flcog.core import signals
from flcog.core.global_streams import kept_streams, seed_streams
from flcog.core.precision import default_dtype
from flcog.core.randomness import fold_each
from flcog.core.source import Source
from flcog.core.trees import Tree, rows, unlike_structures
from flcog.datamodules.items import ItemSet, Make, UnusableItem, require_finite_input


class Task(NamedTuple):
    """Some items of a part to read, and what to make of them."""

    part: str
    make: Make
    indices: np.ndarray
    keys: np.ndarray | None = None  # one per item, which seeds its random numbers; None for keys that depend on the index alone
    evaluates: bool = False


class _Tasks(Dataset):
    """What the worker processes read: ``[task]`` is the result of a task, and ``[None]`` is None."""

    def __init__(self, sets: Mapping[str, ItemSet]) -> None:
        self._sets = sets

    def __getitem__(self, task: Task | None) -> Any:
        try:
            return None if task is None else self.result(task)
        except UnusableItem as error:
            return error
        except Exception:  # as torch's own workers hand errors over, since some cannot be sent
            return ExceptionWrapper(where=f"in a worker process for the {task.part} set" if task else "")

    def result(self, task: Task) -> Any:
        part, read = self._sets[task.part], list[Any]()
        keys = (fold_each(0, task.indices) if task.keys is None else task.keys).tolist()
        items = part.evaluated if task.evaluates and part.evaluated is not None else part.items
        where = f"in the {task.part} set"
        try:
            with default_dtype(torch.float32):  # an item does not depend on the run's precision
                for index, key in zip(task.indices.tolist(), keys, strict=True):
                    where = f"in item {index} of the {task.part} set"
                    seed_streams(key)
                    read.append(items[index])
                    require_finite_input(part, read[-1])
                where = f"in a batch of the {task.part} set"
                seed_streams(keys[0])
                return task.make(part, read)
        except Exception as error:
            error.add_note(where)
            raise


class _Waiting(Sampler):
    """Hands the tasks that wait to the ``DataLoader``, or None where there is none, so that it never ends."""

    def __init__(self) -> None:
        self.waiting = deque[tuple[int, Task]]()
        self.sent = deque[int | None]()

    def __iter__(self) -> Iterator[Task | None]:
        while True:
            number, task = self.waiting.popleft() if self.waiting else (None, None)
            self.sent.append(number)
            yield task


class ItemReader:
    """Reads items, in worker processes of a ``DataLoader`` that lasts as long as the run.

    An item's key seeds the random streams of torch, numpy and Python before it is read. It is therefore the same in any process and at
    any time. With ``num_workers=0`` this process reads, and restores its random streams afterwards.
    """

    def __init__(self, sets: Mapping[str, ItemSet], num_workers: int) -> None:
        self._tasks, self.num_workers, self._queue = _Tasks(sets), num_workers, _Waiting()
        self._numbers, self._results = itertools.count(), dict[int | None, Any]()
        self._loaded = list[Iterator[Any]]()
        weakref.finalize(self, self._loaded.clear)  # ends the processes, also before Python ends
        self._in_turn = threading.Lock()  # clients on several threads read at once

    def ask(self, task: Task) -> int:
        """Begin to read items. Returns a number for :meth:`result`."""
        number = next(self._numbers)
        if self.num_workers:
            self._queue.waiting.append((number, task))
        else:
            with self._in_turn, kept_streams():
                self._results[number] = self._tasks.result(task)
        return number

    def result(self, number: int) -> Any:
        """Wait for a result."""
        while number not in self._results:
            with self._in_turn:
                if number not in self._results:
                    self._take_next()
        result = self._results.pop(number)
        if isinstance(result, ExceptionWrapper):
            result.reraise()
        if isinstance(result, UnusableItem):
            raise result
        return result

    def _take_next(self) -> None:
        """Take the next result of the processes, which come in the order of the tasks."""
        if not self._loaded:
            loader = DataLoader(
                self._tasks,
                batch_size=None,
                sampler=self._queue,
                num_workers=self.num_workers,
                collate_fn=_unchanged,
                worker_init_fn=_ignore_signals,
                generator=torch.Generator(),  # so that it draws nothing from the global stream
            )
            self._loaded.append(iter(loader))
        result = next(self._loaded[0])
        self._results[self._queue.sent.popleft()] = result

    def rest(self) -> None:
        """End the processes while there are no tasks; the next one starts others."""
        self._loaded.clear()
        self._queue.sent.clear()

    def make(self, task: Task) -> Any:
        """Read items, and wait for the result."""
        return self.result(self.ask(task))

    def each(self, part: str, make: Make, indices: np.ndarray, at_once: int = 32) -> Iterator[Any]:
        """Yield the results for ``at_once`` items at a time, in order."""
        asked = deque[int]()
        for start in range(0, len(indices), at_once):
            asked.append(self.ask(Task(part, make, indices[start : start + at_once])))
            if len(asked) > 4 * self.num_workers:
                yield self.result(asked.popleft())
        yield from map(self.result, asked)


def _unchanged(result: Any) -> Any:
    return result


def _ignore_signals(worker: int) -> None:
    """Let a process read on after Ctrl-C, which reaches all processes of a terminal: a run that saves itself still needs its data."""
    for name in signals.NAMES:
        if number := getattr(signal, name, None):
            signal.signal(number, signal.SIG_DFL if name == "SIGTERM" else signal.SIG_IGN)


class Streamed(Source):
    """The inputs of one set, which are read while the model trains."""

    def __init__(self, reader: ItemReader, part: str, length: int, whole_batches: bool, make: Make) -> None:
        self._reader, self._part, self._length, self._make = reader, part, length, make
        self.whole_batches, self.draws_here = whole_batches, reader.num_workers == 0
        # A block of samples is shared out among the workers, a batch of the user's is one worker's.
        self.ahead = 2 * reader.num_workers if whole_batches else 2 * (reader.num_workers > 0)
        self._expected: dict[tuple[bytes, bytes], list[int]] = {}

    def __len__(self) -> int:
        return self._length

    def expect(self, indices: np.ndarray, keys: np.ndarray | None) -> None:
        name = _name(indices, keys)
        if self._reader.num_workers and name not in self._expected:
            chosen, chosen_keys, _ = self._distinct(indices, keys)
            self._expected[name] = self._ask(chosen, chosen_keys)

    def read(self, indices: np.ndarray, keys: np.ndarray | None) -> Tree:
        chosen, chosen_keys, places = self._distinct(indices, keys)
        asked = self._expected.pop(_name(indices, keys), None) or self._ask(chosen, chosen_keys)
        parts = [self._reader.result(number) for number in asked]
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

    def _ask(self, indices: np.ndarray, keys: np.ndarray | None) -> list[int]:
        shares = 1 if self.whole_batches else min(max(1, self._reader.num_workers), len(indices))
        groups = np.array_split(np.arange(len(indices)), shares)
        tasks = [Task(self._part, self._make, indices[own], None if keys is None else keys[own], keys is None) for own in groups]
        return [self._reader.ask(task) for task in tasks]


def _name(indices: np.ndarray, keys: np.ndarray | None) -> tuple[bytes, bytes]:
    return indices.tobytes(), b"" if keys is None else keys.tobytes()
