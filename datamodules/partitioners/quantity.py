"""Client sizes that differ, with the same mix of labels."""

from dataclasses import dataclass

import numpy as np

from flcog.core.checks import at_least, positive_and_finite
from flcog.data import Partition, Partitioner, Samples
from flcog.datamodules.partitioners.draws import checked_min_size, cut_by_shares, require_a_sample_each, seeded_rng


@dataclass(frozen=True)
class Quantity(Partitioner):
    """Client sizes are skewed, but labels are not: n_k = m + p_k (N - K m), p ~ Dir_K(beta), samples at random.

    Li et al. 2022 (NIID-Bench), https://arxiv.org/abs/2102.02079, use m = 0 and redraw until the smallest client has 10 samples.
    Reserving m samples for each client differs by at most m samples a client, and works for any beta and number of clients.

    Args:
        beta: concentration, > 0 (NIID-Bench: 0.5).
        min_size: m, >= 0. By default 10 if clients average 100 samples or more, and otherwise 1.
    """

    beta: float
    min_size: int | None = None

    def __post_init__(self) -> None:
        positive_and_finite(self, "beta")
        at_least(self, 0, "min_size")

    def __call__(self, samples: Samples, num_clients: int, seed: int) -> Partition:
        require_a_sample_each(len(samples), num_clients)
        rng = seeded_rng(seed)
        min_size = checked_min_size(self.min_size, len(samples), num_clients)
        spare = len(samples) - num_clients * min_size
        sizes = min_size + cut_by_shares(spare, rng.dirichlet(np.full(num_clients, self.beta)))
        return Partition.from_assignment(rng.permutation(np.repeat(np.arange(num_clients), sizes)), num_clients)
