"""Reads batches: from sample indices to tensors on the run's device, in the run's precision."""

import numpy as np
import torch

from flcog.core.trees import Tree, floats_to, map_leaves, num_bytes
from flcog.data import Federation, Samples


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
        first, _ = self(federation.train, federation.partition.indices[:1])
        self.example = first
        """One input as the model takes it, [1, ...]."""
        self.bytes_per_sample = num_bytes(first)

    def __call__(self, samples: Samples, indices: np.ndarray, keys: np.ndarray | None = None) -> tuple[Tree, Tree]:
        """Inputs and targets of some samples; augmented where ``keys``, one per sample, are given."""
        chosen = torch.from_numpy(indices).to(self.device, non_blocking=True)
        inputs, targets = self.federation.load(samples, chosen, self.device, keys)
        inputs = floats_to(self._dtype, inputs)
        return inputs if self._convolves else map_leaves(torch.Tensor.contiguous, inputs), targets

    def train(self, indices: np.ndarray, keys: np.ndarray | None = None) -> tuple[Tree, Tree]:
        """The same for the training set."""
        return self(self.federation.train, indices, keys)
