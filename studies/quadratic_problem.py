"""FedAvg on quadratics in closed form: the number of rounds to a target, for any step size."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Problem:
    """FedAvg with exact gradients on clients f_i(x) = c_i/2 ||x - x_i||^2, which all have the same number of samples.

    Args:
        curvatures: c [n].
        optima: x_i [n, d].
        local_steps: tau.
        start: x_0 [d].
    """

    curvatures: np.ndarray
    optima: np.ndarray
    local_steps: int
    start: np.ndarray

    @property
    def optimum(self) -> np.ndarray:
        """x*, the minimum of the mean of the f_i."""
        return (self.curvatures[:, None] * self.optima).mean(0) / self.curvatures.mean()

    @property
    def drift(self) -> float:
        """How far local steps move the fixed point of FedAvg from x*, for small lr, in units of lr (tau - 1) / 2.

        For small lr, a client's tau steps move x by -lr (tau c_i - lr c_i^2 tau (tau - 1) / 2) (x - x_i). With gradients
        g_i = c_i (x* - x_i), whose mean is 0, the fixed point is x* + lr (tau - 1) / 2 * mean_i (c_i - c) g_i / c, c the mean
        c_i.
        """
        c, mean = self.curvatures, self.curvatures.mean()
        gradients = c[:, None] * (self.optimum - self.optima)
        return float(np.linalg.norm(((c - mean)[:, None] * gradients).mean(0)) / mean)

    def rounds(self, lr: np.ndarray, targets: np.ndarray) -> np.ndarray:
        """The first round after which ||x - x*||^2 is at most the target, for step sizes [S] and targets [T]: [S, T]; inf: never.

        A round is affine: y_i = x_i + (1 - lr c_i)^tau (x - x_i). If a is the mean of those powers and x_inf the fixed point,
        then x_R = x_inf + a^R (x_0 - x_inf). On that line the squared distance to x* is a parabola in a^R.

        >>> problem = Problem(np.array([1.0, 1.0]), np.array([[1.0], [-1.0]]), 1, np.array([1.0]))
        >>> problem.rounds(np.array([0.5]), np.array([0.25**2, 0.2**2]))  # 1, 1/2, 1/4, 1/8
        array([[2., 3.]])
        """
        powers = (1 - lr[:, None] * self.curvatures) ** self.local_steps
        a = powers.mean(1)
        ends = ((1 - powers) @ self.optima / len(self.curvatures)) / (1 - a)[:, None]
        v, w = self.start - ends, ends - self.optimum
        # || u v + w ||^2 <= target, solved for the largest u = a^R of at most 1.
        vv, vw, ww = (v * v).sum(1)[:, None], (v * w).sum(1)[:, None], (w * w).sum(1)[:, None]
        root = vw**2 - vv * (ww - targets)
        with np.errstate(invalid="ignore", divide="ignore"):
            largest = (-vw + np.sqrt(root)) / vv
            rounds = np.ceil(np.log(largest) / np.log(a)[:, None] - 1e-9)
        possible = (root >= 0) & (largest > 0) & ((a > 0) & (a < 1))[:, None]
        return np.where(possible, np.maximum(rounds, 0), np.inf)

    def tuned(self, targets: np.ndarray, num_rates: int = 2000) -> tuple[np.ndarray, np.ndarray]:
        """The fewest rounds to each target over step sizes up to 1 / max c, and the step sizes that take them."""
        rates = np.geomspace(1e-7, 1, num_rates) / self.curvatures.max()
        rounds = self.rounds(rates, targets)
        best = rounds.argmin(0)
        return rounds[best, np.arange(len(targets))], rates[best]
