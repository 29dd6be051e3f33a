"""BandedNoise: noise that is correlated over rounds, so that it partly cancels in the sum of all rounds."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import hypot

import numpy as np
from scipy.signal import lfilter
from torch import Tensor

from flcog.core.checks import at_least

Noises = Mapping[str, Tensor]
"""The noise that was added in a round, in units of its standard deviation, by the names of the fields of the sums."""


@dataclass(frozen=True)
class BandedNoise:
    """Correlates the noise of ``DPFedAvg`` over rounds, for cohorts of fixed size whose clients pause after each participation.

    Matrix factorisation, the successor of DP-FTRL. With independent normal vectors z_t, the noise of round t is::

        n_t = [ z_t - sum_{k=1}^{bands-1} c_k n_{t-k} ] / c_0,    c_k = binom(2 k, k) / 4^k / norm

    In matrices, n = C^-1 z, where C is lower triangular and has the coefficients c_k on its diagonals. These are the first coefficients
    of 1 / sqrt(1 - x), which are the square root of the sum over rounds, divided by their norm. A round takes back a part of the earlier
    rounds' noise, so that the model, which is a sum over rounds, has less of it than with independent noise.

    A client that took part rests for ``separation - 1`` rounds; the cohort is drawn from the others. Its participations therefore meet
    columns of C that share no row, each of norm 1 at most: T rounds are one Gaussian mechanism with sensitivity sqrt(ceil(T / separation)).
    The cohorts need not be secret, and sampling does not amplify privacy. The guarantee hides whether a client sends its updates or
    zeros.

    Choquette-Choo et al., (Amplified) Banded Matrix Factorization, NeurIPS 2023, https://arxiv.org/abs/2306.08153; Kalinin and Lampert,
    Banded Square Root Matrix Factorization, NeurIPS 2024, https://arxiv.org/abs/2405.13763 (the coefficients); Kairouz et al., Practical
    and Private (Deep) Learning without Sampling or Shuffling, ICML 2021, https://arxiv.org/abs/2103.00039 (DP-FTRL).

    Args:
        bands: the number of rounds over which noise is correlated, >= 1; 1 gives independent noise.
        separation: the least distance in rounds between two participations of a client, >= bands; None takes ``bands``. A larger one
            spends less, and needs ``separation`` times ``trainer.clients_per_round`` clients.

    Example:
        >>> BandedNoise(bands=2).coefficients  # 1 and 1/2, divided by their norm
        array([0.89442719, 0.4472136 ])
    """

    bands: int = 8
    separation: int | None = None

    def __post_init__(self) -> None:
        at_least(self, 1, "bands")
        at_least(self, self.bands, "separation")

    @property
    def pause(self) -> int:
        """The separation."""
        return self.bands if self.separation is None else self.separation

    @property
    def coefficients(self) -> np.ndarray:
        """c_k for k < bands."""
        k = np.arange(1, self.bands)
        found = np.cumprod(np.concatenate([[1.0], (2 * k - 1) / (2 * k)]))
        normed: np.ndarray = found / hypot(*found)
        return normed

    def correlated(self, field: str, drawn: Tensor, past: Sequence[Noises]) -> Tensor:
        """The noise n_t of a field."""
        first, *others = self.coefficients.tolist()
        for coefficient, noises in zip(others, past, strict=False):
            if field in noises:
                drawn = drawn - coefficient * noises[field].to(drawn.device)
        return drawn / first

    def sentence(self, rounds: int) -> str:
        """The effect on a training and its files, in words."""
        kept = f", and checkpoints contain the noise of {self.bands - 1} rounds, so keep them secret" if self.bands > 1 else ""
        return f"the sums over rounds have {self.error(rounds):.3g} times the noise of independent rounds{kept}"

    def error(self, rounds: int) -> float:
        """The root mean square of the noise in the sums over the first rounds, over that of independent noise with the same epsilon.

        ||A C^-1|| / ||A|| in Frobenius norms, where A is the lower triangular matrix of ones.

        >>> BandedNoise(bands=1).error(100), round(BandedNoise(bands=100).error(100), 3)
        (1.0, 0.334)
        """
        rows = np.arange(rounds, 0, -1)  # a Toeplitz matrix contains the number of diagonal k in this many rows
        sums = lfilter([1.0], self.coefficients, np.ones(rounds))
        return float(np.sqrt(np.dot(rows, sums**2) / rows.sum()))
