"""UniformSelection: a fixed number of clients, drawn uniformly, with unbiased weights if wanted."""

from dataclasses import dataclass

import torch

from flcog.core.types import Slot
from flcog.method import ClientPool, Participants, SamplingLaw, Selection, Unbiased


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

    Example:
        >>> UniformSelection(unbiased=True).unbiased
        True
    """

    unbiased: Unbiased = False

    def select(self, state: Slot, population: ClientPool, count: int, rng: torch.Generator) -> Participants:
        # How many clients are available is not known: nobody asks all of them.
        probability = min(1.0, count / population.num_clients) if population.availability is None else None
        return population.weighted(self.unbiased, population.draw(count), probability)

    def law(self, count: int, num_clients: int) -> SamplingLaw:
        return SamplingLaw(count / num_clients, fixed_size=count < num_clients)
