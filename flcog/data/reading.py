"""Read batches: turn sample indices into tensors on the run's device, in the run's precision."""

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flcog.core.precision import sent
from flcog.core.source import Source
from flcog.core.trees import Tree, floats_to, map_leaves, moved, num_bytes
from flcog.data import Federation, Samples
from flcog.data.samples import Returned

Request = tuple[np.ndarray, np.ndarray | None]
"""Indices of samples, and a random key for each sample if they are augmented."""


AHEAD_BYTES = 64 * 2**20
"""Announce no further batches to a source while this many bytes are pending: one batch of large images is enough."""


class Reader:
    """Reads a federation's samples for a model.

    Convolutions read channels-last images faster. For models without them, the reader makes images contiguous, for many batches at
    once. The ``own_steps`` of a model receive a data set's batches as they are.
    """

    def __init__(
        self, federation: Federation, device: torch.device, dtype: torch.dtype, convolves: bool, own_steps: bool = False
    ) -> None:
        self.federation, self.device, self._dtype, self._convolves = federation, device, dtype, convolves
        self._own_steps = own_steps
        first, self.example_targets = self(federation.train, federation.partition.indices[:1])
        self.example = first
        """One input of the model, [1, ...]."""
        self.bytes_per_sample = num_bytes(first)

    @property
    def source(self) -> Source | None:
        """The source that makes the training set's inputs; None if they are stored."""
        inputs = self.federation.train.inputs
        return inputs if isinstance(inputs, Source) else None

    @property
    def whole_batches(self) -> bool:
        """Whether every training batch must be read alone."""
        return self.source is not None and self.source.whole_batches

    def placed(self, indices: np.ndarray) -> np.ndarray | Tensor:
        """Move indices to the device if the training set is stored there, so that no batch waits for a copy of its indices."""
        return sent(torch.from_numpy(indices), self.device) if self.federation.train.stored else indices

    def __call__(self, samples: Samples, indices: np.ndarray | Tensor, keys: np.ndarray | None = None) -> tuple[Tree, Tree]:
        """Read inputs and targets of some samples, augmented if there is a random key for each of them."""
        chosen = indices if isinstance(indices, Tensor) else torch.from_numpy(indices)
        if samples.stored:
            chosen = sent(chosen, self.device)
        return self._ready(samples, samples.gather(chosen, keys), chosen, keys)

    def _ready(self, samples: Samples, gathered: Tree, indices: Tensor, keys: np.ndarray | None) -> tuple[Tree, Tree]:
        if samples.whole and self._own_steps:
            return moved(gathered, self._moved), ()
        returned = samples.returned if self._own_steps else None
        if returned is not None and returned.unscaled:
            return moved(gathered, self._moved), self._as_returned(returned, indices)
        inputs, targets = self.federation.ready(samples, gathered, indices, self.device, keys)
        inputs = floats_to(self._dtype, inputs)
        inputs = inputs if self._convolves else map_leaves(torch.Tensor.contiguous, inputs)
        return inputs, targets if returned is None else self._as_returned(returned, indices)

    def _as_returned(self, returned: Returned, indices: Tensor) -> Tree:
        """The targets as the data set returns them."""
        return moved(map_leaves(lambda leaf: leaf.index_select(0, indices.to(leaf.device)), returned.targets), self._moved)

    def _moved(self, part: Any) -> Any:
        """A part of a whole batch, as Lightning would hand it over: on the device, and in the run's precision if it is not 32-true."""
        if not isinstance(part, Tensor):
            return part.to(self.device)
        part = sent(part, self.device)
        return part.to(self._dtype) if self._dtype != torch.float32 and part.is_floating_point() else part

    def train(self, indices: np.ndarray | Tensor, keys: np.ndarray | None = None) -> tuple[Tree, Tree]:
        """The same for the training set."""
        return self(self.federation.train, indices, keys)

    def expect(self, request: Request) -> None:
        """Announce the first batch of the next client to a source, which may read it."""
        if self.source is not None:
            self.source.expect(*request)

    def each(self, samples: Samples, requests: Iterable[Request]) -> Iterator[tuple[Tree, Tree]]:
        """Read the requests in order. A source prepares some in advance."""
        return (self(samples, *request) for request in self._told(samples, requests))

    def _told(self, samples: Samples, requests: Iterable[Request]) -> Iterator[Request]:
        """Yield the requests, and announce some of them to a source in advance."""
        source = samples.inputs if isinstance(samples.inputs, Source) else None
        rest, told = iter(requests), deque[Request]()
        while True:
            while not told or (source is not None and len(told) <= source.ahead and self._bytes(told) < AHEAD_BYTES):
                if (request := next(rest, None)) is None:
                    break
                if source is not None:
                    source.expect(*request)
                told.append(request)
            if not told:
                return
            yield told.popleft()

    def _bytes(self, requests: Iterable[Request]) -> int:
        return sum(len(indices) for indices, _ in requests) * self.bytes_per_sample
