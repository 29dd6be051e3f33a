"""The facts of a training from which its epsilon follows: the sampling of clients, the noise, and delta."""

from dataclasses import dataclass
from math import inf, nan

import torch

from flcog.callbacks.privacy.accountant import Sampling, epsilon
from flcog.callbacks.privacy.banded_noise import BandedNoise
from flcog.core.types import Slot
from flcog.method import SamplingLaw, Training, sealed_sum_of, selection_of

NUMBERS = (
    "noise",
    "delta",
    "rate",
    "num_clients",
    "at_most",
    "fixed_size",
    "known",
    "separation",
    "bands",
    "expected",
    "largest",
)
"""The names of these facts in the server's state, each a number."""


@dataclass(frozen=True)
class Guarantee:
    """The facts that fix epsilon, as the server's state records them.

    Args:
        sampling: of the clients of the federation for which epsilon holds.
        delta: the probability that the guarantee may fail.
        expected: the expected number of clients of a round, which is the divisor of sums.
        largest: the largest number of clients of a round.
        bands: the number of rounds over which noise is correlated.
        noise: the noise multiplier; NaN before it is known.

    Example:
        >>> facts = Guarantee(Sampling(100, 0.1), delta=1e-3, expected=10.0, largest=100.0, noise=0.0)
        >>> facts.sentence(rounds=3, paid=3, repeated=0, target=None, scaled=False)
        'no guarantee: without noise, epsilon is infinite'
        >>> Guarantee.read(facts.state()) == facts
        True
    """

    sampling: Sampling
    delta: float
    expected: float
    largest: float
    bands: int = 1
    noise: float = nan

    def state(self) -> Slot:
        """The facts as a part of the server's state."""
        sampling = self.sampling
        at_most = sampling.at_most or inf
        sizes = (sampling.rate, sampling.num_clients, at_most, sampling.fixed_size, sampling.known, sampling.separation or 0)
        values = (self.noise, self.delta, *sizes, self.bands, self.expected, self.largest)
        return {name: torch.tensor(float(value), dtype=torch.float64) for name, value in zip(NUMBERS, values, strict=True)}

    @classmethod
    def read(cls, state: Slot) -> "Guarantee":
        """The facts that the server's state records."""
        facts = {name: float(state[name]) for name in NUMBERS}
        at_most = None if facts["at_most"] == inf else int(facts["at_most"])
        sampling = Sampling(
            int(facts["num_clients"]),
            facts["rate"],
            at_most,
            fixed_size=bool(facts["fixed_size"]),
            known=bool(facts["known"]),
            separation=int(facts["separation"]) or None,
        )
        return cls(sampling, facts["delta"], facts["expected"], facts["largest"], int(facts["bands"]), facts["noise"])

    def epsilon(self, rounds: float, repeated: float = 0) -> float:
        """Epsilon after some rounds.

        Args:
            rounds: that were paid for.
            repeated: how many of them were repeated. With a separation, a client can take part in each of these.
        """
        pause = self.sampling.separation or 1
        return epsilon(self.sampling, self.noise, rounds + (pause - 1) * repeated, self.delta)

    def sentence(self, rounds: int, paid: float, repeated: float, target: float | None, scaled: bool) -> str:
        """The guarantee in words.

        Args:
            rounds: of the whole training.
            paid: the number of rounds that are paid for at its end.
            repeated: how many of them were repeated.
            target: the budget; None for no budget.
            scaled: whether the guarantee holds for a larger federation.
        """
        if self.noise == 0:
            return "no guarantee: without noise, epsilon is infinite"
        federation = f", for a federation of {self.sampling.num_clients:,} clients" if scaled else ""
        again = f" and {repeated:g} repetition{'s' * (repeated != 1)} of interrupted rounds" if repeated else ""
        epsilon = self.epsilon(paid, repeated)
        stops = f"; the budget of {target:g} ends the run earlier" if target is not None and epsilon > target else ""
        return (
            f"epsilon {epsilon:.4g} after {rounds} rounds{again} by {self.sampling.accountants[0]} with delta {self.delta:.3g} and noise "
            f"multiplier {self.noise:.4g}{federation}; {self.sampling}; hides whether {self.sampling.adjacency}{stops}"
        )


def guarantee_of(
    name: str, training: Training, noise_cohort_size: int | None, delta: float | None, banded: BandedNoise | None = None
) -> Guarantee:
    """The facts of a training, without its noise.

    Args:
        name: the private method's.
        training: the run.
        noise_cohort_size: the size of cohorts of the federation for which epsilon holds; None for that of the run. Cohorts of a fixed size
            are the same share of its clients as in the run, or a little more.
        delta: None for clients^-1.1.
        banded: the correlation of the noise; None for independent noise.
    """
    law = _law(name, training, "UniformSelection" if banded is not None else "PoissonSampling or UniformSelection")
    if banded is not None:
        _check_pauses(banded, law, training)
    expected = min(law.rate * training.num_clients, law.at_most or inf)
    scaling = 1.0 if noise_cohort_size is None else noise_cohort_size / expected
    num_clients, rate = max(1, round(training.num_clients * scaling)), law.rate
    if law.fixed_size and noise_cohort_size is not None:
        num_clients = noise_cohort_size * training.num_clients // round(expected)  # rounded down, so that epsilon is no smaller
        rate = noise_cohort_size / num_clients
    at_most = None if law.at_most is None else max(1, round(law.at_most * scaling))
    if delta is None:
        delta = num_clients**-1.1 if num_clients > 1 else 0.5
    largest = min(law.at_most or inf, training.num_clients * (law.rate if law.fixed_size else 1.0))
    known = sealed_sum_of(training.methods) is not None
    sampling = Sampling(num_clients, rate, at_most, fixed_size=law.fixed_size, known=known)
    if banded is None:
        return Guarantee(sampling, delta, expected, largest)
    sampling = Sampling(num_clients, rate, separation=banded.pause)
    return Guarantee(sampling, delta, expected, largest, banded.bands)


def _check_pauses(banded: BandedNoise, law: SamplingLaw, training: Training) -> None:
    """Refuse cohorts whose clients cannot pause long enough."""
    if (not law.fixed_size and law.rate < 1) or law.at_most is not None:
        raise ValueError(
            "BandedNoise needs cohorts of a fixed size, and PoissonSampling has others: remove it, or remove BandedNoise"
        )
    size = round(law.rate * training.num_clients)
    if banded.pause * size > training.num_clients:
        raise ValueError(
            f"BandedNoise: {size} clients a round that take part at most once in {banded.pause} rounds need {banded.pause * size} clients; "
            f"got {training.num_clients}: lower clients_per_round, bands or separation"
        )


def _law(name: str, training: Training, covered: str) -> SamplingLaw:
    """The law of the run's cohorts. ``covered`` names the selections that have one."""
    selection, count, num_clients = selection_of(training.methods), training.cohort_size, training.num_clients
    if selection is None:
        return SamplingLaw(count / num_clients, fixed_size=count < num_clients)
    law = selection.law(count, num_clients)
    if law is None:
        raise ValueError(
            f"{name} and {selection.name} cannot be combined: its cohorts are not drawn independently of the data and of other "
            f"rounds. List {covered} instead"
        )
    return law
