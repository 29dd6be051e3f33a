"""Reads batches: from sample indices to tensors on the run's device, in the run's precision."""

from collections import deque
from collections.abc import Iterable, Iterator

import numpy as np
import torch
from torch import Tensor

from flcog.core.source import Source
from flcog.core.trees import Tree, floats_to, map_leaves, num_bytes
from flcog.data import Federation, Samples

Request = tuple[np.ndarray, np.ndarray | None]
"""Indices of samples, and a key for each where they are to be augmented."""


AHEAD_BYTES = 64 * 2**20
"""A source is told no more once so much is under way: an evaluation's batch of large images is enough for itself."""


class Reader:
    """Reads a federation's samples for a model.

    Args:
        federation: the samples, and how they are preprocessed and augmented.
        device: where batches are wanted.
        dtype: what floating-point inputs become.
        convolves: whether the model has convolutions. They read channels-last images faster; all else reads contiguous ones faster,
            which are made so here for many batches at once.
    """

    def __init__(self, federation: Federation, device: torch.device, dtype: torch.dtype, convolves: bool) -> None:
        self.federation, self.device, self._dtype, self._convolves = federation, device, dtype, convolves
        first, self.example_targets = self(federation.train, federation.partition.indices[:1])
        self.example = first
        """One input as the model takes it, [1, ...]."""
        self.bytes_per_sample = num_bytes(first)

    @property
    def source(self) -> Source | None:
        """What makes the training set's inputs, where they are not stored."""
        inputs = self.federation.train.inputs
        return inputs if isinstance(inputs, Source) else None

    @property
    def whole_batches(self) -> bool:
        """Whether every batch of training must be read by itself."""
        return self.source is not None and self.source.whole_batches

    def placed(self, indices: np.ndarray) -> np.ndarray | Tensor:
        """Indices into the training set where it is looked up: on the device if it is stored there, so that no batch waits for them."""
        return torch.from_numpy(indices).to(self.device, non_blocking=True) if self.federation.train.stored else indices

    def __call__(self, samples: Samples, indices: np.ndarray | Tensor, keys: np.ndarray | None = None) -> tuple[Tree, Tree]:
        """Inputs and targets of some samples; augmented where ``keys``, one per sample, are given."""
        chosen = indices if isinstance(indices, Tensor) else torch.from_numpy(indices)
        inputs, targets = self.federation.load(samples, chosen, self.device, keys)
        inputs = floats_to(self._dtype, inputs)
        return inputs if self._convolves else map_leaves(torch.Tensor.contiguous, inputs), targets

    def train(self, indices: np.ndarray | Tensor, keys: np.ndarray | None = None) -> tuple[Tree, Tree]:
        """The same for the training set."""
        return self(self.federation.train, indices, keys)

    def each(self, samples: Samples, requests: Iterable[Request]) -> Iterator[tuple[Tree, Tree]]:
        """One request after another, of which a source is told some ahead."""
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
            yield self(samples, *told.popleft())

    def _bytes(self, requests: Iterable[Request]) -> int:
        return sum(len(indices) for indices, _ in requests) * self.bytes_per_sample
