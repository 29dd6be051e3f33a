"""Read batches: turn sample indices into tensors on the run's device, in the run's precision."""

from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flcog.core.copies import Arriving, copy_queue_of, sent
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
        self.copy_queue = copy_queue_of(device)
        """The queue of copies that overlap with computations; None if the device has no second queue."""
        self._announced: Request | None = None
        self._begun: tuple[Request, Arriving] | None = None
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

    @property
    def copies_ahead(self) -> bool:
        """Whether samples for training are copied to the device while it computes."""
        return self.copy_queue is not None and not self.federation.train.stored

    def expect(self, request: Request) -> None:
        """Announce the first batch of the next client: a source may read it, and its copy starts with this client's last batch."""
        if self.source is not None:
            self.source.expect(*request)
        if self.copies_ahead:
            self._announced = request

    def each(self, samples: Samples, requests: Iterable[Request]) -> Iterator[tuple[Tree, Tree]]:
        """Read the requests in order. A source prepares some in advance, and the next one is copied while the device computes."""
        told = self._told(samples, requests)
        if self.copy_queue is None or samples.stored:
            yield from (self(samples, *request) for request in told)
            return
        under_way = deque[tuple[Request, Arriving]]()
        for request in told:
            under_way.append(self._begin(samples, request))
            if len(under_way) > 1:
                yield self._finish(samples, *under_way.popleft())
        if (announced := self._announced) is not None:
            self._announced = None
            with suppress(Exception):  # reading it later raises the error again, when its client is known
                self._begun = self._begin(self.federation.train, announced)
        if under_way:
            yield self._finish(samples, *under_way.popleft())

    def _begin(self, samples: Samples, request: Request) -> tuple[Request, Arriving]:
        """Start the copy of a request to the device, or return the copy that its announcement has started."""
        if self._begun is not None and samples is self.federation.train and _same(self._begun[0], request):
            begun, self._begun = self._begun, None
            return begun
        assert self.copy_queue is not None
        chosen = torch.from_numpy(request[0])
        return request, Arriving((samples.gather(chosen, request[1]), chosen), self.copy_queue)

    def _finish(self, samples: Samples, request: Request, arriving: Arriving) -> tuple[Tree, Tree]:
        gathered, indices = arriving.here()
        return self._ready(samples, gathered, indices, request[1])

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


def _same(one: Request, other: Request) -> bool:
    """Whether two requests have the same samples and random keys."""
    return all(np.array_equal(a, b) if a is not None and b is not None else a is b for a, b in zip(one, other, strict=True))
