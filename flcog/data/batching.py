"""The steps of local training: how a client's samples become batches."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Batching:
    """How a client's samples become steps.

    With ``local_steps`` the client reads its shuffled samples round and round in full batches of min(batch_size, its samples).
    With ``local_epochs`` each pass ends with a smaller batch, as a DataLoader's does, unless ``drop_last``; a client smaller than
    one batch trains on all its samples.
    """

    batch_size: int
    local_steps: int | None
    local_epochs: float | None
    drop_last: bool = False

    def steps_per_epoch(self, num_samples: int) -> int:
        if self.drop_last:
            return max(1, num_samples // self.batch_size)
        return -(-num_samples // self.batch_size)

    def num_steps(self, num_samples: int) -> int:
        """A client's local steps in a round."""
        if self.local_steps is not None:
            return self.local_steps
        assert self.local_epochs is not None
        return max(1, round(self.local_epochs * self.steps_per_epoch(num_samples)))

    def layout(self, num_samples: int, num_steps: int) -> tuple[np.ndarray, np.ndarray, int]:
        """Starts and sizes of the batches in the client's stream of shuffled passes, and how many passes that takes."""
        steps = np.arange(num_steps)
        if self.local_steps is not None:
            size = min(self.batch_size, num_samples)
            return steps * size, np.full(num_steps, size), -(-num_steps * size // num_samples)
        epoch, within = np.divmod(steps, self.steps_per_epoch(num_samples))
        sizes = np.minimum(self.batch_size, num_samples - within * self.batch_size)
        return epoch * num_samples + within * self.batch_size, sizes, int(epoch[-1]) + 1
