"""The steps of local training: how a client's samples become batches."""

from dataclasses import dataclass

import numpy as np

from flcog.data.order import Order


@dataclass(frozen=True)
class Batching:
    """How a client's samples become steps.

    With ``local_steps`` the client reads its shuffled samples round and round in full batches of min(batch_size, its samples).
    With ``local_epochs`` each pass ends with a smaller batch, as a DataLoader's does, unless ``drop_last``; a client smaller than
    one batch trains on all its samples.
    """

    batch_size: int
    local_steps: int | None
    local_epochs: float | None  # the number of passes, if local_steps is None
    drop_last: bool = False
    accumulate: int = 1  # the number of batches whose gradients make one step; a pass ends a step
    shuffle: bool = True  # each pass has an order of its own
    limit: int | float = 1.0  # the number of batches of a pass (int), or their share (float), if local_steps is None
    order: Order | None = None  # of the clients' samples, if they do not simply shuffle them

    def batches_per_epoch(self, num_samples: int) -> int:
        if self.order is not None:
            whole = self.order.num_batches(num_samples)
        else:
            whole = max(1, num_samples // self.batch_size) if self.drop_last else -(-num_samples // self.batch_size)
        return min(whole, self.limit) if isinstance(self.limit, int) else max(1, int(whole * self.limit))

    def num_steps(self, num_samples: int) -> int:
        """A client's local steps in a round."""
        if self.local_steps is not None:
            return self.local_steps
        assert self.local_epochs is not None
        return max(1, round(self.local_epochs * self._steps_per_epoch(num_samples)))

    def _steps_per_epoch(self, num_samples: int) -> int:
        return -(-self.batches_per_epoch(num_samples) // self.accumulate)

    def ends(self, num_samples: int, num_batches: int) -> np.ndarray:
        """Whether the optimiser steps after each of a client's batches."""
        batches = np.arange(num_batches)
        if self.local_steps is not None:
            return (batches + 1) % self.accumulate == 0
        per_epoch = self.batches_per_epoch(num_samples)
        within = batches % per_epoch + 1
        return (within % self.accumulate == 0) | (within == per_epoch)

    def layout(self, num_samples: int, num_steps: int) -> tuple[np.ndarray, np.ndarray, int]:
        """Starts and sizes of the batches in the client's stream of shuffled passes, and how many passes that takes."""
        if self.local_steps is not None:
            size, count = min(self.batch_size, num_samples), num_steps * self.accumulate
            return np.arange(count) * size, np.full(count, size), -(-count * size // num_samples)
        per_epoch, (passes, rest) = self.batches_per_epoch(num_samples), divmod(num_steps, self._steps_per_epoch(num_samples))
        count = passes * per_epoch + min(rest * self.accumulate, per_epoch)
        epoch, within = np.divmod(np.arange(count), per_epoch)
        sizes = np.minimum(self.batch_size, num_samples - within * self.batch_size)
        return epoch * num_samples + within * self.batch_size, sizes, int(epoch[-1]) + 1
