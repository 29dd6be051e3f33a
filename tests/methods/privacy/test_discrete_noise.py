"""Discrete noise in secure sums: the sampler, the published bound, whole numbers, lost clients, and the budget."""

import math
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from engine.test_lost_replies import lose, prepared
from harness import BatchNormMLP, assert_close, classifier, distance, fit, train
from scipy import stats
from torch import Tensor

from flcog.callbacks import SCAFFOLD, Checkpoint, DPFedAvg, PoissonSampling, SecureAggregation
from flcog.callbacks.privacy import discrete_noise
from flcog.callbacks.privacy.discrete_noise import RandomWords, discrete_gaussian, rounded, value_of_one
from flcog.core.types import Params
from flcog.method import Context, Method, Upload
from methods.privacy.test_dp_fedavg import STILL
from methods.server_steps import changed

private = partial(DPFedAvg, clip=0.5, noise_multiplier=2.0, noise_at="clients")


pytestmark = pytest.mark.usefixtures("quick_accountant")


# The sampler ----------------------------------------------------------------------------------------------------------------------


def chances(std: float, reach: int) -> np.ndarray:
    """The probabilities of the whole numbers from -reach to reach under the discrete Gaussian."""
    weights = np.exp(-(np.arange(-reach, reach + 1.0) ** 2) / (2 * std**2))
    return weights / weights.sum()


@pytest.mark.parametrize(("log_std", "width"), [(0, 1), (2, 1), (14, 2048)])
def test_the_sampler_has_the_probabilities_of_the_discrete_gaussian(log_std: int, width: int) -> None:
    std, size = 2.0**log_std, 40_000
    values, reach = discrete_gaussian(size, log_std, RandomWords(b"5ec3e7")), int(8 * std)
    assert len(values) == size and values.dtype == np.int64
    cells = np.arange(-reach, reach + 1) // width
    expected = size * np.bincount(cells - cells.min(), chances(std, reach))
    found = np.bincount(np.clip(values, -reach, reach) // width - cells.min(), minlength=len(expected))
    often = expected > 5
    rare = [part[~often].sum() for part in (found, expected)]
    found, expected = np.append(found[often], rare[0]), np.append(expected[often], rare[1])
    expected *= found.sum() / expected.sum()
    assert stats.chisquare(found, expected).pvalue > 1e-3
    if width > 1:  # the lowest six bits are uniform
        assert stats.chisquare(np.bincount(values & 63, minlength=64)).pvalue > 1e-3


def test_random_words_are_uniform_below_any_number() -> None:
    words = RandomWords(b"5ec3e7")
    for span in (3, 8, 3 << 61):  # for the last span, a quarter of the words is rejected and drawn again
        found = words.below(span, 20_000)
        assert int(found.max()) < span
        assert stats.chisquare(np.bincount((found.astype(float) * min(span, 12) / span).astype(int))).pvalue > 1e-3
    assert not np.array_equal(words.below(8, 50), words.below(8, 50))


# The bound ------------------------------------------------------------------------------------------------------------------------


def divergence(chance: np.ndarray, shift: int, order: float) -> float:
    """The Renyi divergence between a distribution and its shifted copy. The missing tails have a probability below 1e-30."""
    one, other = (np.log(part) for part in (chance[shift:], chance[: len(chance) - shift]))
    return float(np.logaddexp.reduce(order * one + (1 - order) * other) / (order - 1))


@pytest.mark.parametrize("std", [0.5, 0.8, 2.0])
@pytest.mark.parametrize("clients", [1, 2, 5])
def test_sums_keep_to_the_published_bound(std: float, clients: int) -> None:
    """Proposition 14 of Kairouz, Liu and Steinke (2021), in one dimension: alpha shift^2 / (2 n std^2) + tau."""
    chance = alone = chances(std, math.ceil(13 * std))
    for _ in range(clients - 1):
        chance = np.convolve(chance, alone)
    chance = chance[chance > 1e-250]
    tau = 10 * sum(math.exp(-2 * math.pi**2 * std**2 * k / (k + 1)) for k in range(1, clients))
    for shift in (1, 2, 3):
        for order in (1.5, 2.0, 4.0):
            bound = order * shift**2 / (2 * clients * std**2)
            found = divergence(chance, shift, order)
            assert found <= bound + tau + 1e-9
            if std > 1:  # the bound is tight
                assert found == pytest.approx(bound, rel=1e-6)


# Whole numbers --------------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_rounding_is_part_of_the_largest_norm() -> None:
    bound, length, size = 0.5, 400, 4096
    unit = value_of_one("DPFedAvg", bound, length, size)
    assert bound / unit + math.sqrt(size) / 2 == pytest.approx(length)
    rng = torch.Generator().manual_seed(0)
    halves = torch.full((size,), 0.5000001, dtype=torch.float64) * unit
    for values in (torch.randn(size, generator=rng, dtype=torch.float64), halves, halves * 1e6, torch.ones(size).double()):
        numbers = rounded(values, bound, unit, length)
        assert float(numbers.double().norm()) <= length
        clipped = values * min(1.0, bound / float(values.norm()))
        assert float((unit * numbers - clipped).abs().max()) <= unit * (0.5 + 1e-5)
    tight = rounded(torch.ones(size).double(), bound, unit, int(bound / unit))  # as if a client's norm were inexact
    assert float(tight.double().norm()) <= int(bound / unit)
    assert not rounded(torch.full((4,), math.nan, dtype=torch.float64), bound, unit, length).any()


def test_the_server_reads_the_exact_sum_of_the_noisy_whole_numbers() -> None:
    sent: list[Tensor] = []
    read: list[Tensor] = []

    def spy(self: DPFedAvg, *arguments: Any) -> Tensor:
        sent.append(DPFedAvg.whole_numbers(self, *arguments))
        return sent[-1]

    def look(self: SecureAggregation, *arguments: Any) -> Tensor:
        read.append(SecureAggregation.finish(self, *arguments) / self.step)
        return SecureAggregation.finish(self, *arguments)

    for bits in (32, 64):
        sums, noise = changed(SecureAggregation(bits=bits), finish=look), private(bounds={"SCAFFOLD": 0.2})
        train(sums, changed(noise, whole_numbers=spy), SCAFFOLD(), rounds=1, clients_per_round=5)
        assert len(sent) == 5 and torch.equal(read[-1].long(), torch.stack(sent).sum(0))
        sent.clear()


@pytest.mark.parametrize("executor", ["loop", "vmap"])
def test_without_noise_sums_are_the_plain_ones(executor: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(discrete_noise, "discrete_gaussian", lambda size, log_std, words: np.zeros(size, dtype=np.int64))
    options: dict[str, Any] = {"clients_per_round": 5, "executor": executor}
    sealed, plain = (
        train(
            *methods,
            private(repeatable=True, noise_multiplier=noise),
            SCAFFOLD(),
            module=classifier(network=BatchNormMLP),
            **options,
        )
        for methods, noise in (((SecureAggregation(),), 0.01), ((), 0.0))
    )
    assert_close(sealed.state, plain.state, 1e-5)
    assert all(torch.equal(sealed.buffers[n], b) for n, b in plain.buffers.items() if not b.is_floating_point())


@pytest.mark.slow
def test_noise_has_its_size_in_the_model_and_is_independent() -> None:
    options: dict[str, Any] = {"module": classifier(STILL), "clients_per_round": 5, "rounds": 1}
    trainer = train(SecureAggregation(), private(repeatable=True), SCAFFOLD(), **options)
    before, moved = trainer.state, []
    for _ in range(20):
        trainer.train_round()
        moved.append(torch.cat([(value - before[name]).flatten() for name, value in trainer.state.items()]))
        before = trainer.state
    rounds = torch.stack(moved)
    size, total = rounds.shape[1], math.hypot(0.5, 0.5)
    longest = 5**0.5 * 2**14 / 2
    expected = 2 * total / 5 * longest / (longest - math.sqrt(2 * size) / 2)  # 2 size: the model and SCAFFOLD's message
    assert float(rounds.std()) == pytest.approx(expected, rel=0.05)
    assert stats.kstest((rounds / expected).flatten().numpy(), "norm").pvalue > 1e-4
    off = torch.corrcoef(rounds)[~torch.eye(20, dtype=torch.bool)]
    assert float(off.square().mean()) == pytest.approx(1 / size, rel=0.3)


def test_noise_is_secret_unless_it_is_repeatable() -> None:
    options: dict[str, Any] = {"module": classifier(STILL), "rounds": 1}
    for repeatable in (False, True):
        one, two = (train(SecureAggregation(), private(repeatable=repeatable), **options).state for _ in range(2))
        assert all(torch.isclose(value, two[name]).all() == repeatable for name, value in one.items())


def test_an_update_with_nan_counts_as_zero_and_names_nobody() -> None:
    class Spoils(Method):
        def finish_client(self, delta: Params, params: Params, ctx: Context) -> Upload:
            return Upload({name: value * torch.nan for name, value in delta.items()}, ctx.state)

    trainer = train(SecureAggregation(), private(), Spoils(), rounds=1)
    assert all(torch.isfinite(value).all() for value in trainer.state.values())
    assert set(trainer.rows[-1]) == {"round", "privacy/epsilon"}
    assert any("by RDP" in note and "cohorts that the server knows, without amplification" in note for note in trainer.notes)


# Lost clients and the budget ------------------------------------------------------------------------------------------------------


def test_epsilon_counts_the_noise_that_has_arrived() -> None:
    arrived: list[int] = []

    def keep(round: int, reply: Any) -> Any:
        kept = lose(round, reply)
        arrived.extend([round] * sum(len(each.clients) for each in kept))
        return kept

    trainer = prepared(keep, SecureAggregation(), private(), rounds=3, executor="loop", clients_per_round=8)
    trainer.run.engine.clients.may_be_lost = True  # as in a deployment
    cost = 0.0
    for round in range(3):
        row = trainer.train_round()
        cost += 8 / arrived.count(round)
        assert row["privacy/epsilon"] == pytest.approx(cost)
    assert cost > 3


def test_a_sum_with_too_little_noise_for_the_budget_stays_sealed() -> None:
    def first(round: int, reply: Any) -> Any:
        return [reply] if round == 0 or reply.clients[0] == 0 else []

    methods = SecureAggregation(), private(target_epsilon=3.5)
    trainer = prepared(first, *methods, rounds=3, executor="loop", clients_per_round=8)
    trainer.run.engine.clients.may_be_lost = True
    trainer.train_round()
    before = trainer.state
    with pytest.warns(UserWarning, match="round 2: the sum of 1 clients stays sealed: their noise is too small"):
        row = trainer.train_round()
    assert distance(trainer.state, before) == 0 and row["privacy/epsilon"] == 2.0


def test_rounds_without_clients_change_nothing() -> None:
    trainer = train(SecureAggregation(), private(), PoissonSampling(rate=1e-9), rounds=1, clients_per_round=1)
    assert distance(trainer.state, classifier().double().model.state_dict()) == 0


def test_spending_is_recorded_with_its_price_and_resumes(tmp_path: Path) -> None:
    methods = SecureAggregation(), private(delta=0.01), PoissonSampling(rate=0.5), Checkpoint(keep_every_n_rounds=1)
    first = fit(tmp_path, *methods, rounds=3, clients_per_round=4)
    text = (first.run_dir / "spending.yaml").read_text()
    paid = float(first.servers["DPFedAvg"]["paid"])
    assert float(text.removeprefix("rounds_paid: ")) == paid
    # As after a kill, the rounds after the checkpoint have been released, so they count.
    early = str(first.run_dir / "checkpoints" / "round-000001.ckpt")
    resumed = fit(tmp_path, *methods, rounds=2, ckpt_path=early, clients_per_round=4)
    assert float(resumed.servers["DPFedAvg"]["paid"]) > paid


@pytest.mark.slow
def test_repeatable_noise_resumes_bit_for_bit(tmp_path: Path) -> None:
    methods = SecureAggregation(), private(repeatable=True), SCAFFOLD()
    whole, half = (fit(tmp_path, *methods, rounds=rounds) for rounds in (4, 2))
    resumed = fit(tmp_path, *methods, rounds=4, ckpt_path=str(half.run_dir))
    assert all(torch.equal(value, whole.state[name]) for name, value in resumed.state.items())
