"""Inputs that a data set's own code makes on demand, instead of stored inputs."""

from abc import ABC, abstractmethod

import numpy as np

from flcog.core.trees import Tree


class Source(ABC):
    """Makes samples' inputs, for example with a data set's worker processes."""

    whole_batches: bool = False
    """Whether a sample's shape depends on the rest of its batch, so that each batch must be read separately."""
    draws_here: bool = False
    """Whether samples are read in this process and use its random streams, so that only one client can be read at a time."""
    ahead: int = 0
    """The number of requests that it can process while the caller waits for another."""

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of samples."""

    @abstractmethod
    def read(self, indices: np.ndarray, keys: np.ndarray | None) -> Tree:
        """Return the inputs of some samples as tensors on the CPU.

        A sample's key is its randomness. Without keys, the inputs are always the same.
        """

    def expect(self, indices: np.ndarray, keys: np.ndarray | None) -> None:  # noqa: B027 - a source may have no use for it
        """Prepare for samples that will be read soon."""
