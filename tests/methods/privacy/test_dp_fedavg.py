"""Differentially private averaging: bounds, noise, budgets, and the facts that must stay secret."""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from contracts.case import Case
from harness import SGD, BatchNormMLP, TinyData, classifier, distance, fit, train
from reference import dp_fedavg
from scipy import stats
from torch import Tensor

import flcog
from flcog.callbacks import (
    SCAFFOLD,
    BandedNoise,
    ClientFairness,
    Deadline,
    DPFedAvg,
    EarlyStopping,
    EqualWeights,
    FedGen,
    GaussianAttack,
    Oort,
    PoissonSampling,
    Quantize,
    RandomK,
    SecureAggregation,
    SystemModel,
    TrainingScores,
    TrimmedMean,
    UniformSelection,
)
from flcog.callbacks.privacy.accountant import Sampling, epsilon
from flcog.callbacks.privacy.guarantee import guarantee_of
from flcog.core.randomness import secret_normal
from flcog.core.types import Params, Slot
from flcog.method import Callback, ClientView, Context, Envelope, GlobalModel, Method, Run, Training, Upload
from methods.privacy.test_accountant import exact_gaussian_epsilon

NO_NOISE = partial(DPFedAvg, noise_multiplier=0.0, repeatable=True)
secret = partial(DPFedAvg, clip=0.5, noise_multiplier=2.0)
STILL = partial(torch.optim.SGD, lr=0.0)
"""An optimiser that changes nothing, so that only noise moves the model."""

CASES: dict[str, Case] = {
    "DPFedAvg": Case(NO_NOISE(clip=0.1), partial(dp_fedavg.run, clip=0.1, expected=5)),
    "DPFedAvg-layers": Case(
        NO_NOISE(clip=0.1, per_layer=True, full_weight=10),
        partial(dp_fedavg.run, clip=0.1, expected=5, per_layer=True, full_weight=10),
    ),
    "DPFedAvg-noise": Case(
        DPFedAvg(clip=0.1, noise_multiplier=1.0, quantile=0.5, count_noise=10.0, noise=BandedNoise(2), repeatable=True),
        None,
        options={"clients_per_round": 4},
        no_reference="noise: this file tests its law",
        random=True,
    ),
}


pytestmark = pytest.mark.usefixtures("quick_accountant")


def steps(*methods: Method, rounds: int, **options: Any) -> Tensor:
    """The model's change in each round after the first, [rounds - 1, parameters]."""
    options = {"module": classifier(STILL), "clients_per_round": 5} | options
    trainer = train(*methods, rounds=1, **options)
    models = [trainer.state]
    for _ in range(rounds - 1):
        trainer.train_round()
        models.append(trainer.state)
    flat = torch.stack([torch.cat([value.flatten() for value in model.values()]) for model in models])
    return flat.diff(dim=0)


# Noise ----------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "options", "std"),
    [
        (secret(), {}, 2 * 0.5 / 5),
        (secret(per_layer=True), {}, 2 * 0.5 / 5),
        (secret(noise_cohort_size=50), {}, 2 * 0.5 / 50),
        (secret(noise_at="clients"), {}, 2 * 0.5 / 5),
        (secret(quantile=0.5, count_noise=4.0, clip_lr=1e-9), {}, (2**-2 - 8**-2) ** -0.5 * 0.5 / 5),
    ],
    ids=["flat", "layers", "scaled", "clients", "quantile"],
)
@pytest.mark.slow
def test_the_noise_has_its_size_and_is_independent(method: DPFedAvg, options: dict[str, Any], std: float) -> None:
    moved = steps(replace(method, repeatable=True), rounds=30, **options)
    assert float(moved.std()) == pytest.approx(std, rel=0.06)
    assert stats.kstest((moved / std).flatten().numpy(), "norm").pvalue > 1e-4
    rounds, places = torch.corrcoef(moved), torch.corrcoef(moved.T)
    for correlations, count in ((rounds, moved.shape[1]), (places, moved.shape[0])):
        off = correlations[~torch.eye(len(correlations), dtype=torch.bool)]
        assert float(off.square().mean()) == pytest.approx(1 / count, rel=0.3), "as of independent numbers"


def test_secret_noise_is_normal_and_never_repeats() -> None:
    values = secret_normal((20_000,))
    assert stats.kstest(values.numpy(), "norm").pvalue > 1e-4 and secret_normal((2, 3)).shape == (2, 3)
    one, two = (steps(secret(), rounds=2) for _ in range(2))
    assert not torch.isclose(one, two).any()
    repeated = [steps(secret(repeatable=True), rounds=3) for _ in range(2)]
    assert torch.equal(*repeated)


@pytest.mark.slow
def test_every_field_has_a_bound_of_its_own_and_noise() -> None:
    methods = SCAFFOLD(), secret(bounds={"SCAFFOLD": 1.2}, repeatable=True)
    trainer = train(*methods, module=classifier(STILL), rounds=1, clients_per_round=5)
    before, sizes = trainer.state, []
    for _ in range(30):
        trainer.train_round()
        sizes.append(torch.cat([(value - before[name]).flatten() for name, value in trainer.state.items()]))
        before = trainer.state
    bound = math.hypot(0.5, 1.2)
    assert float(torch.stack(sizes).std()) == pytest.approx(2 * bound / 5, rel=0.06)
    control = torch.cat([value.flatten() for value in trainer.servers["SCAFFOLD"]["c"].values()])
    # c adds up 31 rounds of noise on a plain sum, divided by the eight clients.
    assert float(control.std()) == pytest.approx(31**0.5 * 2 * bound / 8, rel=0.3)


def test_a_round_without_clients_takes_a_step_of_noise() -> None:
    trainer = train(SCAFFOLD(), secret(repeatable=True), PoissonSampling(rate=1e-9), rounds=1, clients_per_round=1)
    assert not trainer.states.by_client, "the client that showed the shapes of the messages keeps no state"
    state = dict(trainer.servers["DPFedAvg"])
    expected = float(state["expected"])
    trainer.servers["DPFedAvg"]["expected"] = torch.tensor(5.0, dtype=torch.float64)
    before = trainer.state
    trainer.train_round()
    moved = torch.cat([(value - before[name]).flatten() for name, value in trainer.state.items()])
    assert expected == pytest.approx(8e-9)
    assert float(moved.std()) == pytest.approx(2 * 0.5 * 2**0.5 / 5, rel=0.3)


# Bounds ---------------------------------------------------------------------------------------------------------------------------


def test_the_server_clips_decoded_envelopes_again() -> None:
    """``RandomK`` scales up the numbers that it keeps, so the decoded change exceeds the client's bound."""
    for codec in (RandomK(fraction=0.1), Quantize(bits=2)):
        moved = steps(NO_NOISE(clip=0.01), codec, module=classifier(SGD), clients_per_round=1, rounds=4)
        assert float(moved.norm(dim=1).max()) <= 0.01 * (1 + 1e-6)
        assert float(moved.norm(dim=1).min()) > 0.003


def test_a_client_that_disobeys_moves_the_sum_by_its_bound_alone() -> None:
    huge = {"w": torch.full((4,), 1e3)}
    envelope = Envelope(
        huge, {"running_mean": torch.full((2,), 9.0), "count": torch.tensor(7)}, {"M": {}}, {"M": {"c": torch.full((9,), -5.0)}}
    )
    received = GlobalModel({}, {"running_mean": torch.zeros(2), "count": torch.tensor(3)})
    bounded = NO_NOISE(clip=0.5, bounds={"M": 0.2}).bound(envelope, {}, received)
    assert float(bounded.delta["w"].norm()) == pytest.approx(0.5)
    assert float(bounded.buffers["running_mean"].norm()) == pytest.approx(0.5)
    assert bounded.buffers["count"] == 3, "counts of batches tell of the client's size"
    assert float(bounded.sum["M"]["c"].norm()) == pytest.approx(0.2)


def test_a_client_counts_for_no_more_than_one() -> None:
    envelope = Envelope(
        {"w": torch.ones(3)}, {}, {"DPFedAvg": {}}, {"DPFedAvg": {"within": torch.tensor([7.0, -9.0, 0.5, -0.5])}}
    )
    sent = {"scale": torch.ones(1)}
    bounded = NO_NOISE(quantile=0.5).bound(envelope, sent, GlobalModel({}, {}))
    assert bounded.sum["DPFedAvg"]["within"].tolist() == [0.5, -0.5, 0.5, -0.5]


def test_noise_of_every_field_with_adaptive_bounds() -> None:
    """The noise of sums is a multiple of the round's bounds, with the model's adapted one, and counts have their own noise."""
    method = secret(clip=0.5, bounds={"M": 0.2}, per_layer=True, quantile=0.5, count_noise=4.0)
    state = {"noise": torch.tensor(1.5), "expected": torch.tensor(5.0), "scale": torch.tensor([0.5, 2.0])}
    sums = {"M": {"c": torch.zeros(3)}, "DPFedAvg": {"within": torch.tensor([1.0, -1.0])}}
    total = Envelope({"w": torch.zeros(2)}, {}, {"M": {"b": torch.zeros(1)}, "DPFedAvg": {}}, sums)
    released, _ = method.noisy(state, total, 5, torch.ones)
    bound = math.sqrt(0.5**2 * (0.5**2 + 2**2) / 2 + 0.2**2)
    std = bound * (1.5**-2 - 2 / (2 * 4.0) ** 2) ** -0.5
    assert released.delta["w"].tolist() == pytest.approx([std / 5] * 2)
    assert released.mean["M"]["b"].tolist() == pytest.approx([std / 5])
    assert released.sum["M"]["c"].tolist() == pytest.approx([std] * 3)
    assert released.sum["DPFedAvg"]["within"].tolist() == pytest.approx([5.0, 3.0])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_rounding_to_16_bits_exceeds_no_bound(dtype: torch.dtype) -> None:
    """Many equal numbers are all rounded in the same direction, so that rounding adds up."""
    method, received = NO_NOISE(clip=0.5), GlobalModel({}, {})
    for size in range(100, 300):
        bounded = method.bound(Envelope({"w": torch.ones(size, dtype=dtype)}, {}), {}, received)
        norm = float(bounded.delta["w"].double().norm())
        assert 0.97 * 0.5 < norm <= 0.5 * (1 + 1e-6) and bounded.delta["w"].dtype == dtype


class KnownNorms(Method):
    """Client k changes one weight of every layer by k + 1."""

    def draw(self, rng: torch.Generator, client: ClientView) -> Slot:
        return {"norm": torch.tensor(client.id + 1.0)}

    def finish_client(self, delta: Params, params: Params, ctx: Context) -> Upload:
        zeros = {name: torch.zeros_like(value) for name, value in delta.items()}
        for name in zeros:
            if name.endswith("weight"):
                zeros[name][0, 0] = 1.0
        return Upload({name: ctx.draws["norm"] * value for name, value in zeros.items()}, ctx.state)


@pytest.mark.parametrize("per_layer", [pytest.param(False, marks=pytest.mark.slow), True])
@pytest.mark.slow
def test_the_bound_follows_the_quantile(per_layer: bool) -> None:
    """As in Andrew et al., C <- C exp(-lr (share - quantile)) with the share of clients whose norms are at most C.

    The bound ends at the quantile of the norms.
    """
    method = NO_NOISE(clip=30.0, quantile=0.4, clip_lr=0.3, per_layer=per_layer)
    trainer = train(KnownNorms(), method, rounds=1, clients_per_round=8)
    bounds = [trainer.rows[-1]["privacy/clip"], *(trainer.train_round()["privacy/clip"] for _ in range(29))]
    norms = np.arange(1, 9) * (1.0 if per_layer else math.sqrt(2))
    bound, expected = 30.0 / (math.sqrt(2) if per_layer else 1.0), []
    for _ in range(30):
        bound *= math.exp(-0.3 * (np.mean(norms <= bound) - 0.4))
        expected.append(bound * (math.sqrt(2) if per_layer else 1.0))
    assert bounds == pytest.approx(expected, rel=1e-5)
    assert 2.5 < norms.searchsorted(bound, side="right") < 4.5, "about 0.4 of eight clients"


def test_a_bound_that_nobody_reaches_is_the_mean_over_clients() -> None:
    wide = train(NO_NOISE(clip=1e6), PoissonSampling(rate=1.0), rounds=2)
    mean = train(EqualWeights(), PoissonSampling(rate=1.0), rounds=2)
    assert distance(wide.state, mean.state) < 1e-6
    assert not any(name.startswith("privacy/epsilon") for name in wide.rows[-1]), "no noise guarantees nothing"


def test_statistics_in_16_bits_cannot_keep_to_a_bound() -> None:
    """The old statistics plus a bounded change would be rounded by 0.4 % of the statistics, which can exceed the bound."""
    with pytest.raises(ValueError, match="running_mean has 16 bits, and a bounded change of it is rounded beyond its bound"):
        train(secret(), module=classifier(network=BatchNormMLP), rounds=1, precision="bf16-true")


# Budget ---------------------------------------------------------------------------------------------------------------------------


def test_a_run_stops_before_the_budget_is_exceeded_also_after_a_resume(tmp_path: Path) -> None:
    run = partial(fit, tmp_path, secret(target_epsilon=2.5), eval_every=1)
    with pytest.warns(UserWarning, match="stopped after round 2: another round would exceed the privacy budget"):
        first = run(rounds=5)
    assert [row["privacy/epsilon"] for row in first.rows] == [1.0, 2.0]
    with pytest.warns(UserWarning, match="stopped after round 2"):
        again = run(rounds=9, ckpt_path=str(first.run_dir))
    assert again.round == 2


@pytest.mark.slow
def test_the_noise_for_a_target_is_found_before_round_1_and_kept(tmp_path: Path) -> None:
    """The budget uses the stand-in, which counts rounds. The noise uses the real accountant, which is fast for all clients."""
    every, method = PoissonSampling(rate=1.0), DPFedAvg(clip=0.5, target_epsilon=2.0, delta=0.01)
    first = fit(tmp_path, method, every, rounds=2)
    noise = float(first.servers["DPFedAvg"]["noise"])
    assert epsilon(Sampling(8, 1.0), noise, 2, 0.01) <= 2 < epsilon(Sampling(8, 1.0), 0.99 * noise, 2, 0.01)
    with pytest.warns(UserWarning, match="stopped after round 2"):
        resumed = fit(tmp_path, method, every, rounds=5, ckpt_path=str(first.run_dir))
    assert float(resumed.servers["DPFedAvg"]["noise"]) == noise, "more rounds do not change the noise of those that were released"


class Payments(Callback):
    """Records the content of spending.yaml before the clients of each round begin."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def on_round_start(self, run: Run, round: int, selection: Sequence[int]) -> None:
        self.seen.append((run.directory / "spending.yaml").read_text())


def test_a_round_is_paid_for_before_its_clients_begin(tmp_path: Path) -> None:
    payments = Payments()
    fit(tmp_path, secret(), payments, rounds=3)
    assert payments.seen == [f"rounds_paid: {round}\n" for round in (1, 2, 3)]


def test_a_repeated_round_pays_again(tmp_path: Path) -> None:
    """A run that was killed after it had released round 2 resumes from round 1, and its next round is the third that it pays for."""
    methods = secret(), flcog.callbacks.Checkpoint(keep_every_n_rounds=1)
    first = fit(tmp_path, *methods, rounds=2)
    spending = first.run_dir / "spending.yaml"
    assert spending.read_text() == "rounds_paid: 2\n"
    resumed = fit(tmp_path, *methods, rounds=2, ckpt_path=str(first.run_dir / "checkpoints" / "round-000001.ckpt"))
    assert resumed.rows[-1]["privacy/epsilon"] == 3.0


def test_a_resumed_run_keeps_its_facts_and_counts_every_payment(tmp_path: Path) -> None:
    """Otherwise a run could release rounds with one noise or cohort, and report epsilon for rounds with others."""
    first = fit(tmp_path, secret(), flcog.callbacks.Checkpoint(keep_every_n_rounds=1), rounds=3)
    early = str(first.run_dir / "checkpoints" / "round-000001.ckpt")
    again = partial(fit, tmp_path, rounds=4, ckpt_path=early, resume_changed=True)
    for changed, options in ((secret(noise_multiplier=9.0), {}), (secret(), {"clients_per_round": 2}), (secret(delta=0.01), {})):
        with pytest.raises(
            ValueError, match=r"the rounds until now had a fixed share .* and noise multiplier 2, and one epsilon"
        ):
            again(changed, **options)
    with pytest.raises(ValueError, match="3 rounds were paid for, which exceeds the privacy budget of DPFedAvg"):
        again(secret(target_epsilon=2.5))
    assert (first.run_dir / "spending.yaml").read_text() == "rounds_paid: 3\n"


def test_repeatable_noise_resumes_bit_for_bit_and_warns(tmp_path: Path) -> None:
    method = secret(repeatable=True, quantile=0.5, count_noise=4.0)
    whole = fit(tmp_path, method, PoissonSampling(rate=0.5), rounds=4)
    half = fit(tmp_path, method, PoissonSampling(rate=0.5), rounds=2)
    assert not (half.run_dir / "spending.yaml").exists()
    resumed = fit(tmp_path, method, PoissonSampling(rate=0.5), rounds=4, ckpt_path=str(half.run_dir))
    assert all(torch.equal(value, whole.state[name]) for name, value in resumed.state.items())
    assert any("protects nothing" in note for note in whole.notes)
    assert not any("protects nothing" in note for note in train(secret(), rounds=1).notes)


# Secrets --------------------------------------------------------------------------------------------------------------------------


def test_columns_that_tell_of_clients_are_withheld(tmp_path: Path) -> None:
    data = TinyData(client_val=0.2, client_test=0.2)
    run = partial(fit, tmp_path, secret(), PoissonSampling(rate=0.5), TrainingScores(), ClientFairness(), data=data, eval_every=1)
    with pytest.raises(ValueError, match="monitor='training/accuracy' is not measured in this run"):
        run(EarlyStopping("training/accuracy"), rounds=2)
    trainer = run(rounds=2)
    allowed = {"round", "privacy/epsilon", "test/accuracy", "test/loss"}
    assert allowed <= set(trainer.rows[-1]) and all(name in allowed or name.startswith("test/") for name in trainer.rows[-1])
    assert not any("client" in name for name in trainer.rows[-1])


def test_attacks_and_simulated_time_run_beside_it() -> None:
    trainer = train(GaussianAttack(std=100.0, fraction=0.5), SystemModel(), NO_NOISE(clip=0.2), rounds=1, clients_per_round=8)
    before = torch.cat([value.flatten() for value in trainer.state.values()])
    row = trainer.train_round()
    moved = torch.cat([value.flatten() for value in trainer.state.values()]) - before
    assert float(moved.norm()) <= 0.2 * (1 + 1e-6), "the server bounds attackers, who skip the client's bound"
    assert not any(name.startswith("time/") for name in row)


@pytest.mark.slow
def test_cohorts_are_secret() -> None:
    drawn = {tuple(train(secret(), rounds=1).recorded[0][k].id for k in range(5)) for _ in range(4)}
    assert len(drawn) > 1, "and with the seed they would be the same"


@pytest.mark.parametrize(
    ("methods", "text"),
    [
        (
            [FedGen()],
            "DPFedAvg and FedGen cannot be combined: the server reads the uploads of single clients, which have no noise",
        ),
        ([EqualWeights()], "DPFedAvg and EqualWeights cannot be combined: it weights clients by the other clients of the round"),
        ([TrimmedMean()], "DPFedAvg and TrimmedMean cannot be combined: the server reads the uploads of single clients"),
        ([Deadline()], "DPFedAvg and Deadline cannot be combined: it leaves out clients that are later than others"),
        (
            [SecureAggregation()],
            "DPFedAvg and SecureAggregation cannot be combined: a server that adds the noise has read the sum",
        ),
        ([Oort()], "DPFedAvg and Oort cannot be combined: its cohorts are not drawn independently of the data"),
    ],
    ids=lambda value: value[0].name if isinstance(value, list) else "",
)
def test_methods_outside_the_guarantee_are_refused(methods: list[Method], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        train(secret(), *methods, rounds=1)


@pytest.mark.parametrize(
    ("selection", "sampling"),
    [
        (None, Sampling(8, 5 / 8, fixed_size=True)),
        (UniformSelection(), Sampling(8, 5 / 8, fixed_size=True)),
        (PoissonSampling(rate=0.25), Sampling(8, 0.25)),
        (PoissonSampling(rate=0.25, at_most=3), Sampling(8, 0.25, at_most=3)),
    ],
    ids=["none", "uniform", "Poisson", "truncated"],
)
def test_epsilon_is_that_of_the_real_sampling(
    selection: Method | None, sampling: Sampling, quick_accountant: list[tuple[Any, ...]]
) -> None:
    train(secret(delta=0.01), *([] if selection is None else [selection]), rounds=2)
    assert quick_accountant[-1] == (sampling, 2.0, 2, 0.01)
    assert all(each[0] == sampling for each in quick_accountant)


def test_epsilon_of_scaled_noise_is_that_of_a_larger_federation(quick_accountant: list[tuple[Any, ...]]) -> None:
    row = train(secret(noise_cohort_size=50), PoissonSampling(rate=0.25, at_most=4), rounds=1).rows[-1]
    assert quick_accountant[-1] == (Sampling(200, 0.25, at_most=100), 2.0, 1, 200**-1.1)
    assert row["privacy/epsilon_if_scaled"] == 1 and "privacy/epsilon" not in row


@pytest.mark.parametrize(("clients", "cohort", "scaled"), [(20, 3, 100), (10, 3, 100), (100, 7, 1000), (8, 5, 50), (9, 2, 1)])
def test_a_larger_federation_has_cohorts_of_the_asked_size_and_no_smaller_rate(clients: int, cohort: int, scaled: int) -> None:
    found = guarantee_of("DPFedAvg", Training(clients, cohort, rounds=1, methods=[]), scaled, None).sampling
    assert round(found.rate * found.num_clients, 6) == scaled and found.fixed_size
    assert found.rate >= cohort / clients > scaled / (found.num_clients + 1), "a smaller share would state a smaller epsilon"


def test_weights_are_capped_and_depend_on_the_client_alone() -> None:
    state = {"expected": torch.tensor(4.0)}
    samples = torch.tensor([5.0, 10.0, 1000.0])
    assert NO_NOISE(full_weight=10).shares(state, samples).tolist() == [0.125, 0.25, 0.25]
    assert NO_NOISE().shares(state, samples).tolist() == [0.25] * 3


# Attacks --------------------------------------------------------------------------------------------------------------------------


def released(contributions: Tensor, noise: float) -> Tensor:
    """The noisy mean of contributions [clients, numbers] of norm 1, times the number of clients."""
    method, count = DPFedAvg(clip=1.0, noise_multiplier=noise), len(contributions)
    state = method.init_server({}) | {name: torch.tensor(float(value)) for name, value in (("noise", noise), ("expected", count))}
    rng = torch.Generator().manual_seed(0)

    def normal(shape: tuple[int, ...]) -> Tensor:
        return torch.randn(shape, generator=rng, dtype=torch.float64)

    total = Envelope({"w": contributions.double().mean(0)}, {})
    return method.noisy(state, total, count, normal)[0].delta["w"] * count


def test_the_one_shot_estimate_with_canaries_finds_the_known_epsilon() -> None:
    """Andrew et al., One-shot Empirical Privacy Estimation for Federated Learning, https://arxiv.org/abs/2302.03098: the cosines
    between the release and many random canaries have the distribution of an attacker's statistic."""
    dimension, count, noise, delta = 30_000, 300, 2.0, 1e-5
    rng = torch.Generator().manual_seed(1)
    canaries = torch.nn.functional.normalize(torch.randn(count, dimension, generator=rng), dim=1)
    seen = released(canaries, noise)
    cosines = (canaries.double() @ seen) / seen.norm()
    estimate = exact_gaussian_epsilon(1 / (float(cosines.mean()) * dimension**0.5), delta)
    assert estimate == pytest.approx(exact_gaussian_epsilon(noise, delta), rel=0.2)


def test_an_attack_proves_no_more_than_the_reported_epsilon() -> None:
    """An attacker decides by a threshold whether a client took part.

    Upper bounds on the error rates, by Clopper and Pearson, give a lower bound on epsilon.
    """
    trials, noise, delta = 20_000, 1.0, 1e-5
    without = released(torch.zeros(1, trials), noise)
    present = released(torch.ones(1, trials), noise)
    # Both releases draw the same noise, so false alarms and misses are counted on different halves of the trials.
    false_alarms = int((without[: trials // 2] > 1.5).sum())
    misses = int((present[trials // 2 :] <= 1.5).sum())
    high = [stats.beta.ppf(0.975, wrong + 1, trials // 2 - wrong) for wrong in (false_alarms, misses)]
    proven = math.log((1 - delta - high[1]) / high[0])
    reported = epsilon(Sampling(10, 1.0), noise, 1, delta)
    assert 0.2 * reported < proven < reported
