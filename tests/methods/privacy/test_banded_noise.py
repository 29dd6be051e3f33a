"""Noise that is correlated over rounds: its distribution, its closed forms, the pauses of clients, and epsilon."""

import itertools
import math
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from harness import NUM_FEATURES, classifier, fit
from scipy import special, stats

from flcog.callbacks import BandedNoise, Checkpoint, DPFedAvg, UniformSelection
from flcog.method import Callback
from flcog.models import MLP
from methods.privacy.test_dp_fedavg import STILL, secret, steps

pytestmark = pytest.mark.usefixtures("quick_accountant")
TWO = {"clients_per_round": 2}
"""Two of eight clients train per round, so that each client can pause for three rounds."""


def banded(bands: int, separation: int | None = None, **options: Any) -> DPFedAvg:
    return secret(noise=BandedNoise(bands, separation), **options)


def matrix(rounds: int, bands: int) -> np.ndarray:
    """The matrix C, whose bands are the first coefficients of 1 / sqrt(1 - x), divided by the largest norm of a column.

    Coefficient k is binom(-1/2, k) (-1)^k.
    """
    found = np.zeros((rounds, rounds))
    for row, column in itertools.product(range(rounds), repeat=2):
        if 0 <= row - column < bands:
            found[row, column] = special.binom(-0.5, row - column) * (-1) ** (row - column)
    return found / np.linalg.norm([special.binom(-0.5, k) for k in range(bands)])


def patterns(rounds: int, separation: int) -> Iterator[np.ndarray]:
    """All sets of rounds that are at least ``separation`` apart, as vectors of 0 and 1."""
    for taken in itertools.product([0, 1], repeat=rounds):
        if (np.diff(np.flatnonzero(taken)) >= separation).all():
            yield np.array(taken, float)


class Models(Callback):
    """Keeps the model after each round."""

    def __init__(self) -> None:
        self.models: list[torch.Tensor] = []

    def on_round_end(self, run: Any, *arguments: Any) -> None:
        self.models.append(torch.cat([value.flatten() for value in run.params.values()]))


@pytest.mark.slow
def test_the_noise_is_c_inverse_of_independent_noise_also_after_a_resume(tmp_path: Path) -> None:
    observer, rounds = Models(), 30
    run = partial(
        fit, tmp_path, banded(4), observer, module=classifier(STILL, lambda: MLP(NUM_FEATURES, (64,), 3)), local_steps=1, **TWO
    )
    first = run(rounds=15)
    run(rounds=rounds, ckpt_path=str(first.run_dir))
    noise = torch.stack(observer.models).diff(dim=0).numpy() / (2 * 0.5 / 2)
    # The first round's noise is not among the differences, so rows of C that contain it are left out.
    fresh = (matrix(rounds - 1, 4) @ noise)[3:]
    assert fresh.std() == pytest.approx(1, rel=0.06) and stats.kstest(fresh.flatten(), "norm").pvalue > 1e-4
    assert fresh[11:14].std() == pytest.approx(1, rel=0.08), "the first rounds after the resume subtract the noise before it"
    assert np.abs(np.corrcoef(fresh) - np.eye(len(fresh))).max() < 0.25, "of 643 independent numbers"
    assert np.corrcoef(noise[:-1].flatten(), noise[1:].flatten())[0, 1] < -0.2, "a round takes back the noise of the last one"


@pytest.mark.parametrize("bands", [1, 3, 8, 60])
def test_the_error_of_sums_has_its_closed_form(bands: int) -> None:
    rounds = 60
    ones = np.tril(np.ones((rounds, rounds)))
    factor = ones @ np.linalg.inv(matrix(rounds, bands))
    ratio = np.linalg.norm(factor) / np.linalg.norm(ones)
    assert BandedNoise(bands).error(rounds) == pytest.approx(ratio, rel=1e-12)
    if bands == rounds:  # C is the square root of A up to its norm, and the error sums binom(2 k, k)^2 / 16^k over all entries
        roots = special.binom(2 * np.arange(rounds), np.arange(rounds)) / 4.0 ** np.arange(rounds)
        closed = (roots**2 @ np.arange(rounds, 0, -1)) * (roots @ roots) / (rounds * (rounds + 1) / 2)
        assert ratio**2 == pytest.approx(closed, rel=1e-9)
    drawn, past = np.random.default_rng(0).normal(size=(rounds, 4000)), []
    for row in drawn:
        past.insert(0, {"w": BandedNoise(bands).correlated("w", torch.from_numpy(row), past[: bands - 1])})
    sums = np.stack([each["w"].numpy() for each in reversed(past)]).cumsum(0)
    np.testing.assert_allclose(sums, factor @ drawn, atol=1e-10)
    assert np.sqrt(np.square(sums).mean() * rounds) == pytest.approx(np.linalg.norm(factor), rel=0.03)


def test_the_sensitivity_is_the_largest_over_all_participations() -> None:
    rounds = 9
    for bands, separation in ((1, 1), (1, 3), (3, 3), (3, 4)):
        moved = [np.linalg.norm(matrix(rounds, bands) @ taken) ** 2 for taken in patterns(rounds, separation)]
        assert max(moved) <= math.ceil(rounds / separation) + 1e-9
        assert max(moved) > math.ceil(rounds / separation) - 1, "the last columns of C are cut off"
    too_close = [np.linalg.norm(matrix(rounds, 3) @ taken) ** 2 for taken in patterns(rounds, 2)]
    assert max(too_close) > math.ceil(rounds / 2), "columns of C that share rows add up"


def test_a_repeated_round_counts_as_a_participation_of_every_client() -> None:
    """A killed run released two rounds after round 3, and repeats them: both paths have the same clients in rounds 1 to 3."""
    before, lost, rounds, bands = 3, 2, 7, 3
    c, most = matrix(rounds, bands), 0.0
    for main in patterns(rounds, bands):
        for other in patterns(before + lost, bands):
            if (other[:before] == main[:before]).all():
                also = c[before : before + lost, : before + lost] @ other
                most = max(most, np.sum((c @ main) ** 2) + np.sum(also**2))
    assert math.ceil(rounds / bands) < most <= math.ceil(rounds / bands) + lost


def test_epsilon_counts_participations_and_repeated_rounds(tmp_path: Path) -> None:
    methods = banded(2, 4), Checkpoint(keep_every_n_rounds=1)
    first = fit(tmp_path, *methods, rounds=3, local_steps=1, **TWO)
    assert first.rows[-1]["privacy/epsilon"] == 3, "rounds, of which the accountant counts each fourth"
    early = str(first.run_dir / "checkpoints" / "round-000001.ckpt")
    again = fit(tmp_path, *methods, rounds=3, local_steps=1, ckpt_path=early, **TWO)
    assert again.rows[-1]["privacy/epsilon"] == 3 + 2 * 4, "and two that were released before"
    assert again.servers["DPFedAvg"]["repeated"] == 2 and again.servers["DPFedAvg"]["paid"] == 5


def test_clients_pause_also_after_a_resume(tmp_path: Path) -> None:
    run = partial(fit, tmp_path, banded(2, 3), UniformSelection(), local_steps=1, **TWO)
    first = run(rounds=5)
    cohorts = [{client.id for client in clients} for clients in first.recorded]
    cohorts += [{client.id for client in clients} for clients in run(rounds=12, ckpt_path=str(first.run_dir)).recorded]
    assert len(cohorts) == 12 and {len(cohort) for cohort in cohorts} == {2}
    for first_round, cohort in enumerate(cohorts):
        assert all(cohort.isdisjoint(other) for other in cohorts[first_round + 1 : first_round + 3])
    assert len(set(map(frozenset, cohorts))) > 4, "and are drawn among those that may take part"


def test_one_band_is_independent_noise() -> None:
    plain, one = (steps(secret(repeatable=True, noise=noise), rounds=5) for noise in (None, BandedNoise(1)))
    assert torch.equal(plain, one)
