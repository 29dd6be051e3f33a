"""The bound from the proof of FedDisco's weights: its last inequality, its minimiser, and its program."""

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from feddisco_bound import Bound, main
from scipy.optimize import minimize

from flcog.callbacks import FedDisco
from flcog.method import Cohort


def random_bound(seed: int, num_clients: int = 4, **options: Any) -> Bound:
    rng = np.random.default_rng(seed)
    return Bound(rng.dirichlet(np.full(num_clients, 3.0)), rng.uniform(0, 2, num_clients), **options)


def by_the_last_inequality_of_the_proof(bound: Bound, p: np.ndarray) -> float:
    """Equation 46 of the paper, term by term, averaged over rounds and solved for the squared gradient."""
    tau, eta, L, sigma, B = bound.tau, bound.eta, bound.L, bound.sigma, bound.B
    num_clients, A = len(p), 2 * bound.tau * (bound.tau - 1) * bound.eta**2 * bound.L**2
    mismatch = 2 * num_clients * sum((bound.n[k] - p[k]) ** 2 for k in range(num_clients))
    right = (
        bound.gap / bound.T
        + L * tau * eta**2 * sigma**2 * sum(weight**2 for weight in p)
        + tau * eta * mismatch * B / (2 * num_clients) * sum(bound.d)
        + tau * (tau - 1) * sigma**2 * L**2 * eta**3 / (1 - A)
        + tau * eta * A * B / (1 - A) * sum(p[k] * bound.d[k] for k in range(num_clients))
    )
    left = tau * eta / 2 * (1 - mismatch - 2 * A / (1 - A))
    return right / left if left > 0 else np.inf


@pytest.mark.parametrize("seed", range(3))
def test_the_bound_is_what_the_proof_ends_with(seed: int) -> None:
    bound = random_bound(seed, tau=7, eta=0.03, L=1.5, sigma=0.7, B=3.0, gap=2.5, T=40)
    for p in np.random.default_rng(seed).dirichlet(np.full(4, 2.0), 5):
        assert bound.original(p) == pytest.approx(by_the_last_inequality_of_the_proof(bound, p), rel=1e-12)
        below = bound.denominator(p)
        assert bound.reformulated(p, 0.3) == pytest.approx(bound.numerator(p) - 0.3 * below, rel=1e-12)
        if below > 0:
            assert bound.numerator(p) == pytest.approx(by_the_last_inequality_of_the_proof(bound, p) * below, rel=1e-12)


def test_it_bounds_fedavg_with_any_weights() -> None:
    """The losses are quadratic with known constants: L bounds the curvatures, and B is the least value that meets assumption 4.4."""
    rng, tau, eta, T = np.random.default_rng(0), 5, 0.05, 30
    n, p, d = np.array([0.5, 0.3, 0.2]), np.array([0.46, 0.31, 0.23]), np.array([0.3, 0.5, 0.9])
    curvatures, optima = rng.uniform(0.5, 1.0, (3, 2)), rng.normal(size=(3, 2))

    def slopes(w: np.ndarray) -> np.ndarray:
        return curvatures * (w - optima)

    def loss(w: np.ndarray) -> float:
        return float(n @ (curvatures * (w - optima) ** 2).sum(1) / 2)

    best = (n[:, None] * curvatures * optima).sum(0) / (n[:, None] * curvatures).sum(0)
    start = w = best + np.array([3.0, -2.0])
    squares, excess = [], 0.0
    for _ in range(T):
        own = slopes(w)
        squares.append(float(np.square(n @ own).sum()))
        excess = max(excess, float(((np.square(own).sum(1) - squares[-1]) / d).max()))
        clients = np.tile(w, (3, 1))
        for _ in range(tau):
            clients = clients - eta * curvatures * (clients - optima)
        w = p @ clients
    bound = Bound(n, d, tau, eta, L=1.0, sigma=0.0, B=excess, gap=loss(start) - loss(best), T=T)
    assert min(squares) <= bound.original(p) < np.inf


@pytest.mark.parametrize("weight", [0.0, 0.1, 5.0])
@pytest.mark.parametrize("seed", range(3))
def test_the_closed_form_is_what_a_solver_finds(seed: int, weight: float) -> None:
    bound = random_bound(seed, num_clients=5, sigma=3.0)
    found = minimize(
        lambda p: bound.reformulated(p, weight),
        np.full(5, 0.2),
        bounds=[(0, 1)] * 5,
        constraints={"type": "eq", "fun": lambda p: p.sum() - 1},
        method="SLSQP",
        options={"ftol": 1e-15, "maxiter": 500},
    )
    closed = bound.minimiser(weight)
    assert closed.min() >= 0 and closed.sum() == pytest.approx(1, abs=1e-12)
    np.testing.assert_allclose(closed, found.x, atol=1e-5)
    assert bound.reformulated(closed, weight) <= found.fun + 1e-12


def simplex(step: int) -> np.ndarray:
    """All weights of three clients that are multiples of 1 / step."""
    pairs = itertools.product(range(step + 1), repeat=2)
    return np.array([(i, j, step - i - j) for i, j in pairs if i + j <= step]) / step


def test_the_tightest_weights_are_those_of_a_search() -> None:
    bound = Bound([0.5, 0.3, 0.2], [1.6, 0.1, 0.3], tau=15, eta=0.025, B=20.0)
    tightest, grid = bound.tightest(), simplex(200)
    values = [bound.original(p) for p in grid]
    np.testing.assert_allclose(tightest, grid[int(np.argmin(values))], atol=1 / 200)
    assert bound.original(tightest) <= min(values)
    assert bound.original(tightest) < 0.99 * bound.original(bound.n), "weights by dataset size are not the best"
    # Dinkelbach: with lambda equal to the least value, the reformulation has the same minimiser, and its value there is 0.
    least = bound.original(tightest)
    np.testing.assert_allclose(bound.minimiser(least), tightest, atol=1e-6)
    assert bound.reformulated(tightest, least) == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("seed", range(4))
def test_its_minimiser_has_feddiscos_form(seed: int) -> None:
    """FedDisco itself computes the weights of equations 2 and 3, proportional to n - a d + b."""
    bound = random_bound(seed)
    a, b = bound.coefficients(1.0)
    assert a > 0 and b > 0
    num_samples = torch.tensor(bound.n * 1e6)
    cohort = Cohort(0, [0, 1, 2, 3], 4, num_samples, num_samples, None, {}, None, {}, 0)  # type: ignore[arg-type]
    weights = FedDisco(a=a, b=b, metric="l1").weights(num_samples, bound.d.tolist(), cohort)
    np.testing.assert_allclose((weights / weights.sum()).numpy(), bound.minimiser(1.0), rtol=1e-9)


def test_table_6(capsys: pytest.CaptureFixture[str]) -> None:
    """In 400 steps of descent on the reformulated bound, both forms of the bound fall from line to line."""
    main([])
    lines = capsys.readouterr().out.splitlines()
    table = [[float(value) for value in line.split()] for line in lines[1:6]]
    assert [row[0] for row in table] == [0, 100, 200, 300, 400]
    for column in (1, 2):
        values = [row[column] for row in table]
        assert all(later < earlier for earlier, later in itertools.pairwise(values))
    closed, least = (float(line.split()[2]) for line in lines[6:8])
    assert table[-1][2] == pytest.approx(closed, abs=1e-5) and least <= closed
    assert abs(sum(float(line.split()[3]) for line in lines[-10:]) - 1) < 1e-3
