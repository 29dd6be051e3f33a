"""The facts of a training from which its epsilon follows: the sampling of clients, the noise, and delta."""

from dataclasses import dataclass, fields, replace
from math import inf, nan

import torch

from flcog.callbacks.privacy.accountant import Sampling, epsilon
from flcog.callbacks.privacy.banded_noise import BandedNoise
from flcog.core.types import Slot
from flcog.method import SamplingLaw, SealedSum, Selection, Training, method_of


@dataclass(frozen=True)
class Guarantee:
    """The facts that fix epsilon, each a number of the server's state.

    ``at_most`` is infinite and ``separation`` 0 if there is none, and ``noise`` is NaN before it is known. Sums are divided by the
    expected number of clients of a round; ``largest`` is the largest number.

    Example:
        >>> facts = Guarantee(num_clients=100, rate=0.1, delta=1e-3, expected=10.0, largest=100.0, noise=0.0)
        >>> facts.sentence(rounds=3, paid=3, repeated=0, target=None, scaled=False)
        'no guarantee: without noise, epsilon is infinite'
        >>> Guarantee.read(facts.state()) == facts
        True
    """

    num_clients: float
    rate: float
    delta: float
    expected: float
    largest: float
    at_most: float = inf
    fixed_size: float = False
    known: float = False
    separation: float = 0
    bands: float = 1
    noise: float = nan

    @property
    def sampling(self) -> Sampling:
        """The sampling of the clients of the federation for which epsilon holds."""
        at_most = None if self.at_most == inf else int(self.at_most)
        kind = {"fixed_size": bool(self.fixed_size), "known": bool(self.known)}
        return Sampling(int(self.num_clients), self.rate, at_most, **kind, separation=int(self.separation) or None)

    def state(self) -> Slot:
        """The facts as a part of the server's state."""
        return {name: torch.tensor(float(value), dtype=torch.float64) for name, value in vars(self).items()}

    @classmethod
    def read(cls, state: Slot) -> "Guarantee":
        """The facts that the server's state records."""
        return cls(**{each.name: float(state[each.name]) for each in fields(cls)})

    def epsilon(self, rounds: float, repeated: float = 0) -> float:
        """Epsilon after the rounds that were paid for. With a separation, a client can take part in each repeated one."""
        pause = self.sampling.separation or 1
        return epsilon(self.sampling, self.noise, rounds + (pause - 1) * repeated, self.delta)

    def sentence(self, rounds: int, paid: float, repeated: float, target: float | None, scaled: bool) -> str:
        """The guarantee in words."""
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

    ``noise_cohort_size`` is the size of cohorts of the federation for which epsilon holds. Cohorts of a fixed size are the same share of
    its clients as in the run, or a little more.
    """
    law = _law(name, training, "UniformSelection" if banded is not None else "PoissonSampling or UniformSelection")
    expected = min(law.rate * training.num_clients, law.at_most or inf)
    scaling = 1.0 if noise_cohort_size is None else noise_cohort_size / expected
    num_clients, rate = max(1, round(training.num_clients * scaling)), law.rate
    if law.fixed_size and noise_cohort_size is not None:
        num_clients = noise_cohort_size * training.num_clients // round(expected)  # rounded down, so that epsilon is no smaller
        rate = noise_cohort_size / num_clients
    if delta is None:
        delta = num_clients**-1.1 if num_clients > 1 else 0.5
    largest = min(law.at_most or inf, training.num_clients * (law.rate if law.fixed_size else 1.0))
    found = Guarantee(num_clients, rate, delta, expected, largest)
    if banded is not None:
        _check_pauses(banded, law, training)
        return replace(found, separation=banded.pause, bands=banded.bands)
    at_most = inf if law.at_most is None else max(1, round(law.at_most * scaling))
    return replace(found, at_most=at_most, fixed_size=law.fixed_size, known=method_of(training.methods, SealedSum) is not None)


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
    selection, count, num_clients = method_of(training.methods, Selection), training.cohort_size, training.num_clients
    if selection is None:
        return SamplingLaw(count / num_clients, fixed_size=count < num_clients)
    law = selection.law(count, num_clients)
    if law is None:
        raise ValueError(
            f"{name} and {selection.name} cannot be combined: its cohorts are not drawn independently of the data and of other "
            f"rounds. List {covered} instead"
        )
    return law
