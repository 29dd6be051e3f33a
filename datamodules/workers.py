"""Worker processes that read the items of a data set, with random numbers that depend only on a key for each sample."""

import os
import signal
import threading
import traceback
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils import _pytree as pytree

from flcog.core import child_processes, signals
from flcog.core.global_streams import kept_streams, seed_streams
from flcog.core.precision import default_dtype
from flcog.core.randomness import fold_each
from flcog.core.trees import form
from flcog.core.users_hooks import place_in_users_code

Target = str | int | Callable[[Any], Any] | None
"""The place of a target in an item of a data set."""

Make = Callable[["Items", list[Any]], Any]
"""A function from a part and some of its items to a result. It must be importable by name, or a ``partial`` of such a
function."""


@dataclass(frozen=True)
class Items:
    """A set of items.

    Args:
        items: an object with a length and ``items[index]``, such as a torch ``Dataset``.
        collate_fn: the user's function from a list of items to a batch, as for ``torch.utils.data.DataLoader``; None stacks the
            items.
        lone: whether an item that is not a pair is an input, because the targets are known.
        target: the place of an item's target: a key, an index, or a function of the item. None takes the second of a pair.
    """

    items: Any
    collate_fn: Callable[[list[Any]], Any] | None = None
    lone: bool = False
    target: Target = None

    def pair(self, item: Any) -> tuple[Any, Any]:
        """Return the inputs and the target of an item or a collated batch."""
        if is_pair(item):
            return item[0], item[1]
        if self.lone:
            return item, None
        raise ValueError(
            f"it is {form(item)}, and an item is a pair (input, target), whose input may be a dict or a tuple of tensors: return such "
            'pairs, name the target (target="label"), or give targets'
        )

    def target_of(self, item: Any) -> Any:
        """Return the target of an item."""
        if self.target is None:
            return self.pair(item)[1]
        try:
            return self.target(item) if callable(self.target) else item[self.target]
        except Exception as error:
            raise ValueError(f"target={self.target!r} finds nothing in {form(item)} ({error!r})") from error


def is_pair(item: Any) -> bool:
    return isinstance(item, tuple | list) and len(item) == 2


class Failure(NamedTuple):
    """An error of a data set's code, as text, because some errors cannot be sent between processes."""

    text: str
    trace: str


class Workers:
    """Reads items in worker processes.

    The item's key seeds the random streams of torch, numpy and Python before each item is read. The item is therefore the same in
    any process and at any time.

    Args:
        parts: the sets of items, by name.
        count: the number of processes; 0 reads in this process and restores its random streams afterwards.
    """

    def __init__(self, parts: Mapping[str, Items], count: int) -> None:
        self._parts, self.count = parts, count
        self._pool: ProcessPoolExecutor | None = None
        self._in_turn = threading.Lock()

    def submit(self, part: str, make: Make, indices: np.ndarray, keys: np.ndarray | None = None) -> "Future[Any]":
        """Begin to read items; :func:`result_of` waits for the result.

        Args:
            part: the set.
            make: the function to call with the items.
            indices: which.
            keys: one key per item, which seeds its random numbers; None for keys that depend on the index alone.
        """
        keys = fold_each(0, indices) if keys is None else keys
        if self.count == 0:
            done: Future[Any] = Future()
            with self._in_turn, kept_streams():
                done.set_result(_make(self._parts[part], make, indices, keys))
            return done
        try:
            return self._started().submit(_make_in_worker, part, make, indices, keys)
        except BrokenProcessPool as error:
            raise _death(error) from error

    def each(self, part: str, make: Make, indices: np.ndarray, at_once: int = 32) -> Iterator[Any]:
        """Yield the results for ``at_once`` items at a time, in order."""
        starts, pending = iter(range(0, len(indices), at_once)), deque[Future[Any]]()
        while True:
            for start in islice(starts, 1 + 4 * self.count - len(pending)):
                pending.append(self.submit(part, make, indices[start : start + at_once]))
            if not pending:
                return
            yield result_of(pending.popleft(), part)

    def rest(self) -> None:
        """Stop the processes; the next read starts new ones."""
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None

    def _started(self) -> ProcessPoolExecutor:
        with self._in_turn:
            if self._pool is None:
                # torch's kind of processes, which hand tensors over in shared memory.
                context = torch.multiprocessing.get_context()
                self._pool = ProcessPoolExecutor(self.count, context, _begin, (self._parts, os.getpid()))
                weakref.finalize(self, self._pool.shutdown, wait=False, cancel_futures=True)
            return self._pool


def result_of(pending: "Future[Any]", part: str) -> Any:
    """Return the result, or raise the error of the item that could not be read."""
    try:
        result = pending.result()
    except BrokenProcessPool as error:
        raise _death(error) from error
    if isinstance(result, Failure):
        raise ValueError(f"the {part} set: {result.text}") from RuntimeError(result.trace)
    return result


def _death(error: BrokenProcessPool) -> ValueError:
    return ValueError(
        f"a process that reads the data set died ({error}): where memory ran out, set num_workers lower; in a container shared "
        "memory may be short (docker run --shm-size)"
    )


_mine: dict[str, Items] = {}
"""In a worker process: the sets that it reads."""


def _begin(parts: Mapping[str, Items], parent: int) -> None:
    """Prepare a worker process."""
    for name in signals.NAMES:
        # Ctrl-C reaches all processes of a terminal, and a run that saves itself still needs its data.
        if number := getattr(signal, name, None):
            signal.signal(number, signal.SIG_DFL if name == "SIGTERM" else signal.SIG_IGN)
    child_processes.end_with(parent)
    torch.set_num_threads(1)
    _mine.update(parts)


def _make_in_worker(part: str, make: Make, indices: np.ndarray, keys: np.ndarray) -> Any:
    return _make(_mine[part], make, indices, keys)


def _make(part: Items, make: Make, indices: np.ndarray, keys: np.ndarray) -> Any:
    read: list[Any] = []
    with default_dtype(torch.float32):  # an item does not depend on the run's precision
        try:
            for index, key in zip(indices.tolist(), keys.tolist(), strict=True):
                seed_streams(key)
                item = part.items[index]
                _require_finite(part, item)
                read.append(item)
        except Exception as error:
            return _failure(f"item {indices[len(read)]} cannot be read", error)
        try:
            seed_streams(int(keys[0]))
            return make(part, read)
        except Exception as error:
            return _failure(f"of item {_listed(indices)} no batch can be made", error)


def _require_finite(part: Items, item: Any) -> None:
    """Refuse an item with NaN or infinite inputs: in training it would look like a learning rate that is too high.

    Items of other forms than a pair or a single tensor may use NaN in a sense of their own.
    """
    input = item[0] if is_pair(item) else item
    if not (is_pair(item) or part.lone or isinstance(item, torch.Tensor | np.ndarray)):
        return
    for leaf in pytree.tree_leaves(input):
        if isinstance(leaf, np.ndarray) and leaf.dtype.kind == "f":
            leaf = torch.from_numpy(leaf)
        if isinstance(leaf, torch.Tensor) and leaf.is_floating_point() and not bool(leaf.isfinite().all()):
            raise ValueError("its input holds NaN or infinite values; correct or drop it")


def _failure(what: str, error: Exception) -> Failure:
    kind = "" if type(error) is ValueError else f"{type(error).__name__}: "
    place = f" ({place})" if (place := place_in_users_code(error)) else ""
    return Failure(f"{what}: {kind}{' '.join(str(error).split())}{place}", traceback.format_exc())


def _listed(indices: np.ndarray) -> str:
    return ", ".join(map(str, indices[:3])) + (" ..." if len(indices) > 3 else "")
