"""The accountant: published and closed-form values of epsilon, the noise for a target, and refused input."""

import math
import re

import pytest
from harness import ROOT, few_quickly
from scipy import optimize, stats

from flcog.callbacks.privacy.accountant import Sampling, epsilon, epsilons, noise_for

MANY = 10_000

GOLDEN = [
    (Sampling(MANY, 0.1), 2.0, 100, 1e-6, {"PLD": 2.67504, "RDP": 2.91417}),
    (Sampling(100, 0.1, fixed_size=True), 2.0, 100, 1e-5, {"RDP": 14.05}),
    (Sampling(MANY, 1.0), 5.0, 50, 1e-5, {"PLD": 6.57297, "RDP": 7.07739}),
    (Sampling(MANY, 0.1, known=True), 5.0, 50, 1e-5, {"RDP": 7.07739}),  # a sum of discrete Gaussians, without amplification
]
GOLDEN_SLOW = [
    (Sampling(MANY, 0.01), 1.0, 1000, 1e-5, {"PLD": 1.82824, "RDP": 2.10137}),
    (Sampling(MANY, 0.05), 0.8, 200, 1e-5, {"PLD": 7.70217, "RDP": 8.74324}),
    (Sampling(100, 0.1), 2.0, 100, 1e-5, {"PLD": 2.34, "RDP": 2.58}),
    (Sampling(100, 0.1, at_most=20), 2.0, 100, 1e-5, {"PLD": 2.41}),
    (Sampling(100, 0.1, at_most=10), 2.0, 100, 1e-5, {"PLD": 6.02}),
]


@pytest.mark.parametrize(
    "sampling, noise, rounds, delta, expected",
    [*GOLDEN, *(pytest.param(*row, marks=pytest.mark.slow) for row in GOLDEN_SLOW)],
    ids=lambda value: str(value) if isinstance(value, Sampling) else "",
)
def test_golden_values(sampling: Sampling, noise: float, rounds: int, delta: float, expected: dict[str, float]) -> None:
    found = epsilons(sampling, noise, rounds, delta)
    digits = 5e-6 if sampling.num_clients == MANY else 5e-3
    assert found == pytest.approx(expected, abs=1.001 * digits)
    assert epsilon(sampling, noise, rounds, delta) == next(iter(found.values())), "the tighter accountant comes first"


def exact_gaussian_epsilon(noise: float, delta: float) -> float:
    """The exact epsilon of the Gaussian mechanism (Balle and Wang, 2018, theorem 8)."""

    def excess(bound: float) -> float:
        first, second = 1 / (2 * noise) - bound * noise, -1 / (2 * noise) - bound * noise
        return float(stats.norm.cdf(first) - math.exp(bound) * stats.norm.cdf(second) - delta)

    return float(optimize.brentq(excess, 1e-6, 50))


@pytest.mark.parametrize(
    "sampling, noise, rounds, mechanisms",
    [
        (Sampling(10, 1.0), 5.0, 50, 50),
        (Sampling(10, 1.0), 3.0, 1, 1),
        (Sampling(80, 0.1, separation=8), 2.0, 17, 3),
        (Sampling(80, 0.1, separation=1), 5.0, 50, 50),
    ],
    ids=str,
)
def test_without_amplification_epsilon_is_that_of_one_gaussian_mechanism(
    sampling: Sampling, noise: float, rounds: int, mechanisms: int
) -> None:
    bound, exact = epsilon(sampling, noise, rounds, 1e-5), exact_gaussian_epsilon(noise / mechanisms**0.5, 1e-5)
    assert exact - 1e-9 <= bound <= exact + 1e-3
    assert epsilons(sampling, noise, rounds, 1e-5) == epsilons(Sampling(sampling.num_clients, 1.0), noise, mechanisms, 1e-5)


def test_rounds_of_a_known_cohort_may_be_fractions() -> None:
    """If the noise of some clients is missing, a round costs more than one round."""
    known = Sampling(100, 0.1, known=True)
    assert epsilon(known, 5.0, 8 / 6, 1e-5) == pytest.approx(epsilon(known, 5.0 * (6 / 8) ** 0.5, 1, 1e-5))


@pytest.mark.parametrize("rate", few_quickly([0.8, 0.99, 0.1, 0.5]))
def test_a_fixed_share_costs_no_more_than_all_clients_with_twice_the_sensitivity(rate: float) -> None:
    share, everyone = (
        epsilons(sampling, noise, 20, 1e-3)["RDP"]
        for sampling, noise in ((Sampling(100, rate, fixed_size=True), 2.0), (Sampling(100, 1.0), 1.0))
    )
    assert share <= everyone * (1 + 1e-9) and (share == pytest.approx(everyone)) == (rate > 0.7)


def test_the_analysis_follows_the_sampling() -> None:
    kinds = {
        Sampling(10, 1.0): ("all", ("PLD", "RDP")),
        Sampling(10, 1.0, fixed_size=True): ("all", ("PLD", "RDP")),
        Sampling(10, 0.5, at_most=10): ("Poisson", ("PLD", "RDP")),
        Sampling(10, 0.5, at_most=9): ("truncated Poisson", ("PLD",)),
        Sampling(10, 0.5, fixed_size=True): ("fixed size", ("RDP",)),
        Sampling(10, 0.5, separation=2): ("separated", ("PLD", "RDP")),
    }
    assert {each: (each.kind, each.accountants) for each in kinds} == kinds
    assert {each.adjacency for each in kinds if each.kind == "fixed size"} == {"one client is replaced"}


def test_no_rounds_spend_nothing_and_no_noise_guarantees_nothing() -> None:
    assert epsilons(Sampling(10, 0.5), 1.0, 0, 1e-3) == {"PLD": 0, "RDP": 0}
    assert epsilons(Sampling(10, 0.5), 0.0, 1, 1e-3) == {} and epsilon(Sampling(10, 0.5), 0.0, 1, 1e-3) == math.inf


@pytest.mark.parametrize("target", [0.5, pytest.param(8.0, marks=pytest.mark.slow)])
@pytest.mark.slow
def test_the_noise_for_a_target_keeps_to_it_and_is_hardly_larger(target: float) -> None:
    sampling = Sampling(100, 1.0)
    noise = noise_for(sampling, target, 20, 1e-4)
    assert epsilon(sampling, noise, 20, 1e-4) <= target < epsilon(sampling, 0.998 * noise, 20, 1e-4)


def test_the_accountant_is_imported_on_first_use() -> None:
    """Its import takes many seconds."""
    for path in [*(ROOT / "callbacks").rglob("*.py"), *(ROOT / "flcog").rglob("*.py")]:
        assert not re.search(r"^(import|from) dp_accounting|^\S.*require\(.dp_accounting", path.read_text(), re.MULTILINE), path
