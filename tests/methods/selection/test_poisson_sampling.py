"""PoissonSampling lets every client take part independently of the others."""

import itertools
import math
from functools import partial

import numpy as np
import pytest
import torch
from contracts.case import Case
from harness import SIZES, BatchNormMLP, classifier, train
from reference import fedavg, horvitz_thompson

from flcog.callbacks import PoissonSampling
from flcog.callbacks.selection.poisson_sampling import bernoulli, expected_minimum

pytestmark = pytest.mark.filterwarnings("error")

ALL = {"clients_per_round": 8}
CASES: dict[str, Case] = {
    "PoissonSampling": Case(PoissonSampling(rate=0.6), fedavg.run, PoissonSampling(rate=1.0), options=ALL, random=True),
    "PoissonSampling-unbiased": Case(
        PoissonSampling(rate=0.6, unbiased=True),
        partial(horvitz_thompson.run, probability=lambda client: 0.6, num_samples=sum(SIZES)),
        PoissonSampling(rate=1.0, unbiased=True),
        module=partial(classifier, network=BatchNormMLP),
        options=ALL,
        random=True,
    ),
    "PoissonSampling-clients": Case(
        PoissonSampling(at_most=3, unbiased="clients"),
        partial(
            horvitz_thompson.run,
            probability=lambda client: expected_minimum(8, 5 / 8, 3) / 8,
            num_samples=sum(SIZES),
            equal_clients=True,
        ),
        random=True,
    ),
}


@pytest.mark.slow
def test_it_draws_every_subset_as_often_as_independent_coins() -> None:
    rng, rate, draws = torch.Generator().manual_seed(0), 0.3, 20_000
    found = [tuple(bernoulli(4, rate, rng).tolist()) for _ in range(draws)]
    for size in range(5):
        for subset in itertools.combinations(range(4), size):
            expected = rate**size * (1 - rate) ** (4 - size)
            assert abs(found.count(subset) / draws - expected) < 4 * math.sqrt(expected / draws), subset


def test_a_million_clients_take_the_time_of_those_drawn() -> None:
    rng = torch.Generator().manual_seed(0)
    sizes = [len(bernoulli(10**6, 1e-4, rng)) for _ in range(200)]
    assert abs(np.mean(sizes) - 100) < 4 * math.sqrt(100 / 200) and abs(np.var(sizes) - 100) < 45
    assert len(bernoulli(10**6, 1e-12, rng)) == 0
    assert bernoulli(5, 1.0, rng).tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(("num_clients", "rate", "most"), [(8, 0.6, 3), (8, 0.6, 8), (8, 1.0, 5), (10**6, 1e-4, 90)])
def test_the_probability_under_a_bound(num_clients: int, rate: float, most: int) -> None:
    draws = np.random.default_rng(0).binomial(num_clients, rate, 200_000)
    assert expected_minimum(num_clients, rate, most) == pytest.approx(np.minimum(draws, most).mean(), rel=2e-3)


def test_no_more_take_part_than_the_bound_allows() -> None:
    trainer = train(PoissonSampling(rate=0.9, at_most=3), rounds=12, local_steps=1)
    assert {len(round) for round in trainer.recorded} == {3}
    assert {client.id for round in trainer.recorded for client in round} == set(range(8)), "the bound prefers no client"


def test_without_a_rate_clients_per_round_is_the_mean() -> None:
    trainer = train(PoissonSampling(), rounds=60, clients_per_round=3, local_steps=1)
    counts = [row["clients/participating"] for row in trainer.rows]
    assert len(set(counts)) > 3 and abs(np.mean(counts) - 3) < 4 * math.sqrt(3 * 5 / 8 / 60)


@pytest.mark.parametrize(
    ("rate", "count", "num_clients", "expected"),
    [(0.07, 1, 100, 7), (0.28, 1, 100, 28), (0.55, 1, 200, 110), (None, 7, 25, 7), (0.071, 1, 100, 8), (1e-6, 1, 100, 1)],
)
def test_rounding_expects_no_further_client(rate: float | None, count: int, num_clients: int, expected: int) -> None:
    assert PoissonSampling(rate=rate).expected(count, num_clients) == expected
