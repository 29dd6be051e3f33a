"""UniformSelection, WeightedSelection and RoundRobin: the same number of clients in every round."""

from dataclasses import dataclass

import numpy as np
import torch

from flcog.core.types import Slot
from flcog.method import ClientPool, Participants, RoundRecord, SamplingLaw, Selection, Unbiased


@dataclass(frozen=True)
class UniformSelection(Selection):
    """Draws ``trainer.clients_per_round`` clients uniformly without replacement, as a run without a selection does.

    ::

        pi_k = m / N,   w_k = (n_k / n) / pi_k    if unbiased

    With ``unbiased``, the weights are the unnormalised sample counts n_k, so that the mean change is right in expectation. FedAvg
    divides by the samples of the round's clients instead, which lets small clients count for more than their share. Horvitz and
    Thompson, A Generalization of Sampling Without Replacement from a Finite Universe, JASA 1952,
    https://doi.org/10.1080/01621459.1952.10483446; Li et al., On the Convergence of FedAvg on Non-IID Data, ICLR 2020,
    https://arxiv.org/abs/1907.02189 (scheme II).

    Args:
        unbiased: whether weights are divided by inclusion probabilities: ``true`` for the mean over all samples, ``clients`` for the
            mean over all clients, each of which counts the same.
    """

    unbiased: Unbiased = False

    def select(self, state: Slot, population: ClientPool, count: int, rng: torch.Generator) -> Participants:
        # How many clients are available is not known: nobody asks all of them.
        probability = min(1.0, count / population.num_clients) if population.availability is None else None
        return population.weighted(self.unbiased, population.draw(count), probability)

    def law(self, count: int, num_clients: int) -> SamplingLaw:
        return SamplingLaw(count / num_clients, fixed_size=count < num_clients)


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


@dataclass(frozen=True)
class RoundRobin(Selection):
    """Takes the next ``trainer.clients_per_round`` clients in the order of their numbers, and begins again after the last.

    ::

        S_t = {(t m) mod N, ..., (t m + m - 1) mod N}

    Clients that are not available are passed over. Otherwise every client takes part equally often. Nothing is random, so there are no
    inclusion probabilities and no unbiased weights: within a round, the mean change is that of the clients whose turn it is. If clients
    are ordered by their data, the model follows the order. Cho et al., On the Convergence of Federated Averaging with Cyclic Client
    Participation, ICML 2023, https://arxiv.org/abs/2302.03109.

    Example:
        >>> RoundRobin().update({}, RoundRecord(0, selected=[6, 7, 0], trained=[6, 7, 0]))
        {'next': tensor(1)}
    """

    def init_selection(self, num_clients: int) -> Slot:
        return {"next": torch.tensor(0)}

    def select(self, state: Slot, population: ClientPool, count: int, rng: torch.Generator) -> Participants:
        first, number, clients, searched = int(state["next"]), population.num_clients, list[int](), 0
        while len(clients) < count and searched < number:
            turns = (first + searched + np.arange(min(2 * count, number - searched))) % number
            clients += turns[population.available(turns)].tolist()
            searched += len(turns)
        return Participants(clients[:count])

    def update(self, state: Slot, record: RoundRecord) -> Slot:
        return {"next": torch.tensor(record.selected[-1] + 1)} if record.selected else state
