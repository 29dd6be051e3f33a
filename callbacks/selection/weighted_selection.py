"""WeightedSelection: clients with more samples take part more often."""

from dataclasses import dataclass

import numpy as np
import torch

from flcog.core.types import Slot
from flcog.method import ClientPool, Participants, Selection, Unbiased


@dataclass(frozen=True)
class WeightedSelection(Selection):
    """Draws a fixed number of distinct clients, each with a probability proportional to its number of samples.

    ::

        pi_k = min(1, c n_k),   sum_k pi_k = m,   w_k = (n_k / n) / pi_k    if unbiased

    The draw is systematic: all clients lie side by side on a line, each as long as its number of samples, and m points at equal
    distances from a random start pick the clients below them. A client that is longer than this distance always takes part, and the
    points share the rest of the line. With ``unbiased`` the selected clients have equal weights, as long as none always takes part.
    Without it, large clients count twice: they are drawn more often and weigh more. If an availability model acts, clients are drawn
    one after another among the available ones. Madow, On the Theory of Systematic Sampling, II, Annals of Mathematical Statistics 1949,
    https://doi.org/10.1214/aoms/1177729988.

    Args:
        unbiased: whether weights are divided by inclusion probabilities: ``true`` for the mean over all samples, ``clients`` for the
            mean over all clients, each of which counts the same.

    Example:
        >>> clients, probabilities = systematic(torch.tensor([1, 2, 3, 10]), np.array([1, 3, 6, 16]), count=2, start=0.4)
        >>> clients, probabilities.tolist()  # client 3 has more than half of the samples
        ([1, 3], [0.3333333333333333, 1.0])
    """

    unbiased: Unbiased = False

    def select(self, state: Slot, population: ClientPool, count: int, rng: torch.Generator) -> Participants:
        if population.availability is not None or population.sample_ends is None:
            return population.weighted(self.unbiased, population.draw_by_size(count), None)
        start = float(torch.rand((), generator=rng, dtype=torch.float64))
        return population.weighted(self.unbiased, *systematic(population.sizes, population.sample_ends(), count, start))


def systematic(sizes: torch.Tensor, ends: np.ndarray, count: int, start: float) -> tuple[list[int], torch.Tensor]:
    """Clients at equal distances on the line of all samples, in order, with their inclusion probabilities.

    ``ends`` are the running sum of the clients' sizes, and ``start`` is the place of the first point in its interval, in [0, 1).
    """
    largest = torch.topk(sizes, min(count, len(sizes)))
    certain, total = list[int](), int(ends[-1])
    for client, size in zip(largest.indices.tolist(), largest.values.tolist(), strict=True):
        if size * (count - len(certain)) < total:
            break
        certain.append(client)
        total -= size
    certain.sort()
    left = count - len(certain) if total else 0
    own = sizes.numpy()
    cut = own[certain]
    # Where the certain clients' pieces lay, on the line from which they have been cut out.
    seams = ends[certain] - cut - (np.cumsum(cut) - cut)
    points = (np.arange(left) + start) * (total / max(1, left))
    skipped = np.concatenate([[0], np.cumsum(cut)])[np.searchsorted(seams, points, side="right")]
    clients = sorted({*certain, *np.searchsorted(ends, (points + skipped).astype(np.int64), side="right").tolist()})
    probabilities = [1.0 if client in certain else left * own[client] / total for client in clients]
    return clients, torch.tensor(probabilities, dtype=torch.float64)
