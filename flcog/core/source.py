"""Inputs that are made when they are asked for: what stands in the place of stored ones where a data set's own code reads them."""

from abc import ABC, abstractmethod

import numpy as np

from flcog.core.trees import Tree


class Source(ABC):
    """Samples' inputs that somebody makes, such as a data set's worker processes."""

    whole_batches: bool = False
    """Whether a sample's shape depends on those it is read with, so that every batch must be read by itself."""
    draws_here: bool = False
    """Whether samples are read in this process, whose random streams they then draw from: one client at a time."""
    ahead: int = 0
    """How many requests it can work on while another one is waited for."""

    @abstractmethod
    def __len__(self) -> int:
        """How many samples there are."""

    @abstractmethod
    def read(self, indices: np.ndarray, keys: np.ndarray | None) -> Tree:
        """The inputs of some samples, as tensors on the CPU.

        Args:
            indices: which.
            keys: all the randomness that each sample gets; None where it is always the same.
        """

    def expect(self, indices: np.ndarray, keys: np.ndarray | None) -> None:  # noqa: B027 - a source may have no use for it
        """Told what will be read soon."""
