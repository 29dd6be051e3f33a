"""FedDisco's theory: the optimisation bound of Theorem 4.5 as a function of the aggregation weights, and its minimiser (Table 6).

python studies/feddisco_bound.py
"""

import argparse
from dataclasses import dataclass

import numpy as np
import torch

from flcog.callbacks.feddisco import METRICS, discrepancy
from flcog.core.checks import at_least, positive, within
from flcog.data import Partitioner, Samples
from flcog.datamodules import Dirichlet


@dataclass(frozen=True)
class Bound:
    """The bound on min_t E||grad F(w_t)||^2 for FedAvg with aggregation weights p in T rounds: its distance from a stationary point.

    With n the K clients' shares of the samples, d their discrepancies, and W_D as in the proof (C.2.3; section 4 drops its K)::

        A = 2 tau (tau - 1) eta^2 L^2,    W_D = 2 K sum_k (n_k - p_k)^2
        N(p) = 2 (1 - A) [F(w_0) - F_inf] / (tau eta T) + (1 - A) W_D B / K sum_k d_k + 2 (1 - A) L eta sigma^2 sum_k p_k^2
               + 2 (tau - 1) sigma^2 L^2 eta^2 + 2 A B sum_k p_k d_k
        D(p) = 1 - 3 A - W_D (1 - A)
        original:       N(p) / D(p)                 (Theorem 4.5)
        reformulated:   N(p) - lambda D(p)          (eq. 1)

    The reformulation is Dinkelbach's transform of the ratio. If lambda is the bound of the initial weights, weights that lower
    the reformulation also lower the original. If lambda is the minimum of the original, both have the same minimiser.
    :meth:`tightest` uses this to find the minimiser, which the paper calls complicated.

    Ye et al., FedDisco: Federated Learning with Discrepancy-Aware Collaboration, ICML 2023, sections 4 and C,
    https://arxiv.org/abs/2305.19229; Dinkelbach, On Nonlinear Fractional Programming, 1967,
    https://doi.org/10.1287/mnsc.13.7.492.

    Args:
        n: shares of the samples, [K], >= 0 and of sum 1.
        d: discrepancies, [K], >= 0.
        tau: local steps, >= 1.
        eta: local learning rate, > 0, with eta L <= 1 / (2 tau) and A < 1/3; otherwise the bound does not hold.
        L: smoothness of the clients' losses, > 0.
        sigma: standard deviation of a mini-batch's gradient, >= 0.
        B: increase of a client's squared gradient norm for each unit of discrepancy, > 0.
        gap: F(w_0) - F_inf, >= 0.
        T: rounds, >= 1.

    Example:
        >>> bound = Bound(n=[0.5, 0.5], d=[0.2, 0.8], tau=10, eta=0.03, L=1.0, sigma=1.0, B=1.0, gap=1.0, T=100)
        >>> [round(float(weight), 3) for weight in bound.tightest()]
        [0.514, 0.486]
    """

    n: np.ndarray
    d: np.ndarray
    tau: int = 20
    eta: float = 0.018
    L: float = 1.0
    sigma: float = 1.0
    B: float = 10.0
    gap: float = 1.0
    T: int = 100

    def __post_init__(self) -> None:
        for name in ("n", "d"):
            object.__setattr__(self, name, np.asarray(getattr(self, name), dtype=np.float64))
        for name, value in vars(self).items():
            values = np.ravel(value)
            # Below this limit the bound's squares and products stay finite.
            bad = ~(np.abs(values) < 1e75)
            if bad.any():
                raise ValueError(f"Bound: {name} must be finite, and below 1e75; got {values[bad][0]}")
        if self.n.ndim != 1 or self.n.shape != self.d.shape or not len(self.n):
            raise ValueError(f"Bound: n and d need one number per client each; got shapes {self.n.shape} and {self.d.shape}")
        if self.n.min() < 0 or abs(self.n.sum() - 1) > 1e-6 or self.d.min() < 0:
            raise ValueError(
                f"Bound: n must be shares >= 0 of sum 1, and d at least 0; got sum {self.n.sum():g}, least d {self.d.min():g}"
            )
        at_least(self, 1, "tau", "T")
        at_least(self, 0, "sigma", "gap")
        positive(self, "eta", "L", "B")
        if self.eta * self.L > 1 / (2 * self.tau) or self.A >= 1 / 3:
            raise ValueError(
                f"Bound: needs eta L <= 1 / (2 tau) and 2 tau (tau - 1) (eta L)^2 < 1/3; got eta L = {self.eta * self.L:g} and "
                f"{self.A:g} with tau = {self.tau}: lower eta or tau"
            )

    @property
    def A(self) -> float:
        return 2 * self.tau * (self.tau - 1) * (self.eta * self.L) ** 2

    def numerator(self, p: np.ndarray) -> float:
        """T1 + T2 + T3 + T4 + T5."""
        mismatch = 2 * len(self.n) * np.square(self.n - p).sum()
        return float(
            2 * (1 - self.A) * self.gap / (self.tau * self.eta * self.T)
            + (1 - self.A) * mismatch * self.B * self.d.mean()
            + 2 * (1 - self.A) * self.L * self.eta * self.sigma**2 * np.square(p).sum()
            + 2 * (self.tau - 1) * (self.sigma * self.L * self.eta) ** 2
            + 2 * self.A * self.B * (p @ self.d)
        )

    def denominator(self, p: np.ndarray) -> float:
        """1 / T0."""
        mismatch = 2 * len(self.n) * np.square(self.n - p).sum()
        return float(1 - 3 * self.A - (1 - self.A) * mismatch)

    def original(self, p: np.ndarray) -> float:
        """The bound of Theorem 4.5; infinite for weights so far from n that the theorem does not hold."""
        below = self.denominator(p)
        return self.numerator(p) / below if below > 0 else np.inf

    def reformulated(self, p: np.ndarray, weight: float) -> float:
        """The objective of eq. 1, with ``weight`` as its lambda."""
        return self.numerator(p) - weight * self.denominator(p)

    def gradient(self, p: np.ndarray, weight: float) -> np.ndarray:
        """The gradient of the reformulation by p."""
        return self._curvature(weight) * p - self._pull(weight) * self.n + 2 * self.A * self.B * self.d

    def minimiser(self, weight: float) -> np.ndarray:
        """The weights that minimise the reformulation, in closed form (eq. 54).

        It is a projection onto the simplex, because the objective is a paraboloid about the projected point.
        """
        centre = (self._pull(weight) * self.n - 2 * self.A * self.B * self.d) / self._curvature(weight)
        return project_to_simplex(centre)

    def coefficients(self, weight: float) -> tuple[float, float]:
        """a and b of eq. 2, ``p_k proportional to n_k - a d_k + b``: the minimiser if all clients' weights are positive."""
        a = 2 * self.A * self.B / self._pull(weight)
        noise = self._curvature(weight) / self._pull(weight) - 1
        return a, float(noise + a * self.d.sum()) / len(self.n)

    def tightest(self, tolerance: float = 1e-13) -> np.ndarray:
        """The weights that minimise the original bound, by Dinkelbach's iteration with the closed form as its step."""
        p, ratio = self.n, self.original(self.n)
        while True:
            p = self.minimiser(ratio)
            lower = self.original(p)
            if ratio - lower <= tolerance * ratio:
                return p
            ratio = lower

    def descend(self, start: np.ndarray, weight: float, steps: int, lr: float) -> np.ndarray:
        """Projected gradient descent on the reformulation, as in Table 6: the weights at every step, [steps + 1, K].

        Args:
            start: first weights.
            weight: lambda.
            steps: number of steps.
            lr: step size, as a share of the inverse curvature, in (0, 2): 1 arrives in one step.
        """
        within(self, "(0, 2)", lr=lr, hint="descent diverges beyond twice the inverse curvature")
        path = [np.asarray(start, dtype=np.float64)]
        for _ in range(steps):
            slope = self.gradient(path[-1], weight)
            path.append(project_to_simplex(path[-1] - lr / self._curvature(weight) * slope))
        return np.stack(path)

    def _pull(self, weight: float) -> float:
        """The strength with which the reformulation pulls p_k towards n_k."""
        if not 0 <= weight < 1e150:
            raise ValueError(f"Bound: lambda must be at least 0 and finite, and below 1e150; got {weight}")
        return 4 * (1 - self.A) * (self.B * self.d.sum() + len(self.n) * weight)

    def _curvature(self, weight: float) -> float:
        return self._pull(weight) + 4 * (1 - self.A) * self.L * self.eta * self.sigma**2


def project_to_simplex(point: np.ndarray) -> np.ndarray:
    """The nearest weights: non-negative and of sum 1.

    Held, Wolfe and Crowder, Validation of subgradient optimization, 1974: subtract one amount from all coordinates, and set
    negative results to 0.

    >>> project_to_simplex(np.array([0.7, 0.5, -0.2]))
    array([0.6, 0.4, 0. ])
    """
    ordered = np.sort(point)[::-1]
    shifts = (np.cumsum(ordered) - 1) / np.arange(1, len(point) + 1)
    return np.maximum(point - shifts[np.flatnonzero(ordered > shifts)[-1]], 0)


def clients(partitioner: Partitioner, num_clients: int, num_classes: int, num_samples: int, metric: str, seed: int) -> tuple:
    """Shares of the samples and discrepancies from uniform of the clients of a split of balanced classes.

    >>> shares, distances = clients(Dirichlet(1e6), 4, 10, 1000, "l2", seed=0)
    >>> bool(abs(shares - 0.25).max() < 0.01 and distances.max() < 0.01)
    True
    """
    labels = torch.arange(num_samples) % num_classes
    partition = partitioner(Samples(labels, labels), num_clients, seed)
    counts = [torch.bincount(labels[partition.client(k)], minlength=num_classes) for k in range(num_clients)]
    distances = np.array([discrepancy(count, torch.ones(num_classes), metric) for count in counts])
    if metric == "kl":
        distances /= max(distances.sum(), 1e-12)  # as in FedDisco's weights
    return partition.sizes / partition.sizes.sum(), distances


def main(arguments: list[str] | None = None) -> None:
    """Minimise FedDisco's reformulated bound over the aggregation weights, and print the original (Theorem 4.5, Table 6)."""
    given = _parser().parse_args(arguments)
    at_least(None, 1, **{f"--{name}": getattr(given, name) for name in ("clients", "classes", "samples", "steps", "every")})
    n, d = clients(Dirichlet(given.beta), given.clients, given.classes, given.samples, given.metric, given.seed)
    bound = Bound(n, d, **{name: getattr(given, name) for name in ("tau", "eta", "L", "sigma", "B", "gap", "T")})
    weight = bound.original(n) if given.weight is None else given.weight
    path = bound.descend(n, weight, given.steps, given.lr)
    _print_descent(bound, path, weight, given.every)
    a, b = bound.coefficients(weight)
    print(f"\nlambda = {weight:.4g}, and eq. 2's a = {a:.4g} and b = {b:.4g}\n")
    print(f"{'client':>8}{'n':>10}{'d':>10}{'p':>10}")
    for k in range(given.clients):
        print(f"{k:>8}{n[k]:>10.4f}{d[k]:>10.4f}{path[-1][k]:>10.4f}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=main.__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--clients", type=int, default=10, help="number of clients")
    parser.add_argument("--beta", type=float, default=0.5, help="parameter of the Dirichlet split of balanced classes (NIID-1)")
    parser.add_argument("--classes", type=int, default=10, help="number of classes")
    parser.add_argument("--samples", type=int, default=50_000, help="size of the training set")
    parser.add_argument("--metric", choices=METRICS, default="kl", help="the discrepancy")
    parser.add_argument("--seed", type=int, default=0, help="seed of the split")
    for name, what in (
        ("tau", "local steps"),
        ("eta", "local learning rate"),
        ("L", "smoothness of the losses"),
        ("sigma", "noise of the gradients"),
        ("B", "dissimilarity for each unit of discrepancy"),
        ("gap", "initial loss above the minimum"),
        ("T", "rounds"),
    ):
        default = getattr(Bound, name)
        parser.add_argument(f"--{name}", type=type(default), default=default, help=what)
    parser.add_argument(
        "--lambda", dest="weight", type=float, help="lambda of the reformulation; by default the bound of FedAvg's weights"
    )
    parser.add_argument("--steps", type=int, default=400, help="steps of gradient descent")
    parser.add_argument("--every", type=int, default=100, help="steps between lines")
    parser.add_argument("--lr", type=float, default=0.01, help="step size of the descent, as a share of the inverse curvature")
    return parser


def _print_descent(bound: Bound, path: np.ndarray, weight: float, every: int) -> None:
    """Both bounds along the descent, at the closed form, and at the minimum of the original."""
    print(f"{'step':>8}{'reformulated':>14}{'original':>12}")
    steps = len(path) - 1
    for step in sorted({*range(0, steps + 1, every), steps}):
        print(f"{step:>8}{bound.reformulated(path[step], weight):>14.6f}{bound.original(path[step]):>12.6f}")
    closed, tightest = bound.minimiser(weight), bound.tightest()
    print(f"{'closed':>8}{bound.reformulated(closed, weight):>14.6f}{bound.original(closed):>12.6f}   eq. 54")
    print(f"{'least':>8}{bound.reformulated(tightest, weight):>14.6f}{bound.original(tightest):>12.6f}   of the original bound")


if __name__ == "__main__":
    main()
