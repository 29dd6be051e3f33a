"""Unbiased selections on quadratic losses: the exact expectation of the model after a round, over all selections of clients.

Client k has n_k samples with the value b_k, and one local step with learning rate 1/2 moves a model at 0 to b_k. The model after a round is
therefore the weighted sum of the selected clients' values, and its expectation is known.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import mean, stdev

import numpy as np
import pytest
import torch
from harness import few_quickly, make_trainer

from contracts.test_peers_faults import Constants, point
from flcog.callbacks import PoissonSampling, UniformSelection, WeightedSelection
from flcog.core.randomness import fold, make_rng
from flcog.method import ClientPool, Participants, Selection, Slot

pytestmark = pytest.mark.filterwarnings("error")

SIZES, VALUES = (1, 2, 3, 10), (4.0, 1.0, 0.0, -2.0)
OVER_SAMPLES, OVER_CLIENTS = -0.875, 0.75
PAIRS = list(itertools.combinations(range(4), 2))


@dataclass(frozen=True)
class Given(Selection):
    """Selects given clients, with the probabilities and weights of another scheme."""

    clients: tuple[int, ...] = ()
    probability: float | tuple[float, ...] | None = None
    unbiased: bool | str = True

    def select(self, state: Slot, population: ClientPool, count: int, rng: torch.Generator) -> Participants:
        if self.probability is None:
            return Participants(self.clients)
        probability = torch.tensor(self.probability, dtype=torch.float64)
        chosen = probability[list(self.clients)] if probability.ndim else probability
        return population.weighted(self.unbiased, self.clients, chosen)  # type: ignore[arg-type]


def model_after(method: Selection) -> float:
    """The model after one round that starts at 0."""
    trainer = make_trainer(None, method, local_steps=1, clients_per_round=2)
    trainer.prepare(point(0.5, start=0.0), Constants(VALUES, SIZES))
    trainer.train_round()
    return float(trainer.run.params["model.w"])


def expectation(cohorts: Sequence[tuple[tuple[int, ...], float]], method: Selection) -> float:
    """The expected model after one round, over the given cohorts and their probabilities."""
    return sum(chance * model_after(replace(method, clients=clients)) for clients, chance in cohorts)


def test_pairs_with_normalised_weights_are_biased() -> None:
    assert expectation([(pair, 1 / 6) for pair in PAIRS], Given()) == pytest.approx(-0.182, abs=5e-4)


@pytest.mark.parametrize(("unbiased", "target"), [(True, OVER_SAMPLES), ("clients", OVER_CLIENTS)])
def test_pairs_with_unnormalised_sample_counts(unbiased: bool | str, target: float) -> None:
    method = Given(probability=0.5, unbiased=unbiased)
    assert expectation([(pair, 1 / 6) for pair in PAIRS], method) == pytest.approx(target, abs=1e-12)


@pytest.mark.parametrize(("unbiased", "target"), [(True, OVER_SAMPLES), ("clients", OVER_CLIENTS)])
@pytest.mark.slow
def test_independent_clients_with_fixed_denominators(unbiased: bool | str, target: float) -> None:
    rate = 0.3
    subsets = [subset for size in range(5) for subset in itertools.combinations(range(4), size)]
    cohorts = [(subset, rate ** len(subset) * (1 - rate) ** (4 - len(subset))) for subset in subsets]
    assert expectation(cohorts, Given(probability=rate, unbiased=unbiased)) == pytest.approx(target, abs=1e-12)
    # Without these weights, the model is the mean of the cohort's samples, or stays at 0 without clients.
    assert abs(expectation(cohorts, Given()) - target) > 0.3


def test_size_proportional_clients_with_equal_weights() -> None:
    shares = tuple(size / sum(SIZES) for size in SIZES)
    singles = [((client,), share) for client, share in enumerate(shares)]
    assert expectation(singles, Given(probability=shares)) == pytest.approx(OVER_SAMPLES, abs=1e-12)
    assert expectation(singles, Given()) == pytest.approx(OVER_SAMPLES, abs=1e-12), "their weights are equal"
    # In cohorts of two, the client with more than half of all samples always takes part. The second client is sampled from the rest.
    pairs = [((client, 3), SIZES[client] / 6) for client in range(3)]
    probabilities = (1 / 6, 2 / 6, 3 / 6, 1.0)
    assert expectation(pairs, Given(probability=probabilities)) == pytest.approx(OVER_SAMPLES, abs=1e-12)


@pytest.mark.parametrize(
    ("method", "target"),
    few_quickly(
        [
            (UniformSelection(unbiased=True), OVER_SAMPLES),
            (UniformSelection(unbiased="clients"), OVER_CLIENTS),
            (PoissonSampling(rate=0.4, unbiased=True), OVER_SAMPLES),
            (WeightedSelection(unbiased=True), OVER_SAMPLES),
            (WeightedSelection(unbiased="clients"), OVER_CLIENTS),
            (PoissonSampling(rate=0.6, at_most=2, unbiased="clients"), OVER_CLIENTS),
        ],
        3,
    ),
    ids=repr,
)
def test_the_shipped_selections_are_unbiased(method: Selection, target: float) -> None:
    sizes, values = torch.tensor(SIZES), torch.tensor(VALUES, dtype=torch.float64)
    found = []
    for round in range(3000):
        population = ClientPool(
            round, sizes, int(sizes.sum()), fold(0, round, "cohort"), sample_ends=partial(np.cumsum, sizes.numpy())
        )
        selected = method.select({}, population, 2, make_rng(0, round))
        assert selected.weights is not None
        found.append(float(selected.weights @ values[list(selected.clients)]))
    assert abs(mean(found) - target) < 4 * stdev(found) / len(found) ** 0.5
    assert stdev(found) > 0.1
