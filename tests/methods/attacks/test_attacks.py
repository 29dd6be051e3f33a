"""The attacks agree with numpy and with their definitions; attackers are fixed for a run and skip bounds and momentum."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from contracts.case import Case
from harness import RAGGED, SGD, BatchNormMLP, TinyData, assert_close, classifier, distance, fit, problem_of, train
from reference import robust
from torch import Tensor

from flcog.callbacks import (
    DPSGD,
    ALittleIsEnough,
    Backdoor,
    ClipUpdate,
    CoordinateMedian,
    GaussianAttack,
    InnerProductManipulation,
    KeepLocal,
    LabelFlip,
    Mimic,
    MinMax,
    SignFlip,
    StaticClipping,
    TopK,
    WorkerMomentum,
)
from flcog.callbacks.attacks.omniscient import STRENGTHS, AttackerView
from flcog.core.randomness import make_rng
from flcog.core.types import Slot
from flcog.method import Attack, Method, UploadAggregator, UploadMatrix

EVIL = (1, 4, 6)
WHITE = 2.5


def trigger(inputs: Tensor, targets: Tensor, share: float = 0.5) -> tuple[Tensor, Tensor]:
    """Overwrites the last three features of the first ``share`` of the batch, and sets these samples' targets to 2."""
    inputs, targets = inputs.clone(), targets.clone()
    rows = int(np.ceil(share * len(targets)))
    inputs[:rows, -3:], targets[:rows] = WHITE, 2
    return inputs, targets


def first_direction(round: int, size: int) -> Any:
    """The first direction that Mimic draws in a run with seed 0, the test harness's seed."""
    return torch.randn(size, generator=make_rng(0, round, "server", "Mimic")).double().numpy()


# random=True, because only some clients are attackers, so clients with equal data differ.
attack = partial(Case, random=True)
against = partial(robust.run, attackers=EVIL)
CASES: dict[str, Case] = {
    "LabelFlip": attack(LabelFlip(clients=EVIL), partial(against, poison=lambda x, y: (x, 2 - y)), neutral=LabelFlip(count=0)),
    "SignFlip": attack(SignFlip(clients=EVIL), partial(against, send=np.negative), neutral=SignFlip(fraction=0.0)),
    "GaussianAttack": attack(GaussianAttack(clients=EVIL), None, no_reference="it draws noise", neutral=GaussianAttack(count=0)),
    "Backdoor": attack(
        Backdoor(clients=EVIL, target=2, boost=3.0),
        partial(against, poison=trigger, send=lambda row: 3 * row),
        neutral=Backdoor(count=0),
    ),
    "Backdoor in batches of two": attack(
        Backdoor(clients=(0, 2), target=2), partial(robust.run, attackers=(0, 2), poison=trigger), options=RAGGED
    ),
    "ALittleIsEnough": attack(
        ALittleIsEnough(clients=EVIL, z=1.5),
        partial(against, forge=partial(robust.little, z=1.5)),
        neutral=ALittleIsEnough(count=0),
    ),
    "InnerProductManipulation": attack(
        InnerProductManipulation(clients=EVIL, epsilon=2.0), partial(against, forge=partial(robust.inner_product, epsilon=2.0))
    ),
    "Mimic": attack(
        Mimic(clients=EVIL, warmup=2), partial(against, forge=partial(robust.mimic, warmup=2, start=first_direction))
    ),
    "MinMax": attack(MinMax(clients=EVIL), partial(against, forge=robust.min_max)),
    "WorkerMomentum": Case(WorkerMomentum(beta=0.5), partial(robust.run, beta=0.5), neutral=WorkerMomentum(beta=0.0)),
}


@pytest.mark.parametrize(
    ("method", "says"),
    [
        (SignFlip(clients=(0, 8)), r"SignFlip: attackers must be among the 8 clients; got count=None, clients=\(0, 8\)"),
        (
            SignFlip(fraction=0.05),
            "^SignFlip: fraction must be 0, or above 0.0625 to make one of 8 clients an attacker; got 0.05: raise it, or set count: 1$",
        ),
    ],
)
def test_attackers_exist(method: Method, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        train(method, rounds=1)


def test_attackers_are_fixed_for_the_run_and_differ_between_seeds() -> None:
    drawn = [SignFlip(fraction=0.3).attackers(seed, 100) for seed in (0, 0, 1)]
    assert drawn[0] == drawn[1] != drawn[2] and len(drawn[0]) == 30
    assert LabelFlip(count=30).attackers(0, 100) == drawn[0], "attacks of one run have the same attackers"
    assert len(SignFlip(count=3).attackers(0, 10**9)) == 3


@dataclass(frozen=True)
class Rows(UploadAggregator):
    """Keeps the last round's uploads in the server's state, by client."""

    def combine(self, uploads: UploadMatrix, server: Slot) -> tuple[Tensor, Slot]:
        return uploads.mean(), {"rows": uploads.values, "clients": torch.tensor(list(uploads.clients))}


def rows_of(*methods: Method, rounds: int = 1, **options: Any) -> dict[int, Any]:
    state = train(*methods, Rows(), rounds=rounds, **options).servers["Rows"]
    return dict(zip(state["clients"].tolist(), state["rows"].numpy(), strict=True))


@pytest.mark.parametrize("executor", ["loop", "vmap"])
def test_attackers_skip_momentum_and_clipping_but_no_codec(executor: str) -> None:
    plain = rows_of(clients_per_round=8, executor=executor)
    bounded = rows_of(ClipUpdate(norm=0.01), WorkerMomentum(), LabelFlip(clients=EVIL), clients_per_round=8, executor=executor)
    for client, row in bounded.items():
        assert (np.linalg.norm(row) > 0.02) == (client in EVIL)
        assert (np.abs(row - plain[client]).max() > 1e-3) or client not in EVIL  # they train on wrong labels
    options: dict[str, Any] = {"clients_per_round": 8, "executor": executor}
    once, twice = (rows_of(SignFlip(clients=EVIL), rounds=rounds, **options) for rounds in (1, 2))
    momentum = rows_of(WorkerMomentum(beta=0.9), SignFlip(clients=EVIL), rounds=2, **options)
    for client, row in momentum.items():
        expected = twice[client] + (client not in EVIL) * 0.9 * once[client]
        np.testing.assert_allclose(row, expected, rtol=1e-9, atol=1e-12)
    sparse = rows_of(TopK(fraction=0.05), SignFlip(clients=EVIL), clients_per_round=8, executor=executor)
    assert all(np.count_nonzero(row) < 0.2 * len(row) for row in sparse.values())


def test_flipped_statistics_and_an_honest_clients_bits() -> None:
    module = partial(classifier, SGD, BatchNormMLP)
    trainer = train(SignFlip(clients=EVIL), module=module(), rounds=2)
    reference = against(problem_of(trainer, module(), SGD), send=np.negative)
    floats = [name for name, value in reference.items() if value.is_floating_point()]
    assert_close({n: trainer.state[n] for n in floats}, {n: reference[n] for n in floats})
    plain, honest = (train(*methods, module=module(), rounds=1) for methods in ((), (SignFlip(count=0),)))
    assert distance(plain.state, honest.state) == 0


def test_gaussian_attackers_send_noise_of_the_given_size() -> None:
    plain, noisy = rows_of(clients_per_round=8), rows_of(GaussianAttack(clients=EVIL, std=30.0), clients_per_round=8)
    for client, row in noisy.items():
        if client in EVIL:
            assert row.std() == pytest.approx(30.0, rel=0.25) and abs(row.mean()) < 10
        else:
            np.testing.assert_array_equal(row, plain[client])
    assert len({tuple(noisy[k][:3]) for k in EVIL}) == 3
    again = rows_of(GaussianAttack(clients=EVIL, std=30.0), clients_per_round=8, rounds=2)
    assert np.abs(again[1] - noisy[1]).max() > 1


@pytest.mark.parametrize(
    ("attack", "reference"),
    [
        (ALittleIsEnough(clients=EVIL), robust.little),
        (MinMax(clients=EVIL, direction="unit"), partial(robust.min_max, direction="unit")),
        (MinMax(clients=EVIL, direction="sign"), partial(robust.min_max, direction="sign")),
        (InnerProductManipulation(clients=EVIL, epsilon=100.0), partial(robust.inner_product, epsilon=100.0)),
    ],
    ids=["ALittleIsEnough", "unit", "sign", "InnerProductManipulation"],
)
def test_forged_uploads_against_numpy(attack: Attack, reference: Callable[..., Any]) -> None:
    plain, found = rows_of(clients_per_round=8), rows_of(attack, clients_per_round=8)
    forged = reference(np.stack([plain[k] for k in plain if k not in EVIL]), len(EVIL))
    for client, row in found.items():
        np.testing.assert_allclose(row, forged if client in EVIL else plain[client], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    "attack", [ALittleIsEnough(clients=EVIL, optimised=True), InnerProductManipulation(clients=EVIL, optimised=True)]
)
def test_the_optimised_strength_moves_the_result_farthest(attack: Method) -> None:
    plain = rows_of(clients_per_round=8)
    honest = np.stack([plain[k] for k in plain if k not in EVIL])
    start = classifier().double().model.state_dict()
    little = isinstance(attack, ALittleIsEnough)
    reached = []
    for strength in STRENGTHS:
        forge = partial(robust.little, z=strength) if little else partial(robust.inner_product, epsilon=strength)
        rows = np.stack([forge(honest, 3) if k in EVIL else plain[k] for k in sorted(plain)])
        weights = np.array([6, 12, 10, 16, 7, 11, 4, 14]) / 80
        reached.append(robust.median(rows, weights))
    best = reached[int(np.argmax([np.linalg.norm(vector - honest.mean(0)) for vector in reached]))]
    trainer = train(attack, CoordinateMedian(), rounds=1, clients_per_round=8)
    moved = np.concatenate([(trainer.state[n] - v).numpy().ravel() for n, v in start.items()])
    np.testing.assert_allclose(moved, best, rtol=1e-9, atol=1e-12)


def test_attacks_act_before_a_pre_aggregation() -> None:
    clip, attack = StaticClipping(norm=0.01), InnerProductManipulation(clients=EVIL, epsilon=100.0)
    ends = [train(*methods, rounds=1).state for methods in ((clip, attack), (attack, clip))]
    moved = [(value - ends[0][name]).norm() for name, value in classifier().double().model.state_dict().items()]
    assert distance(*ends) == 0 and float(torch.stack(moved).norm()) <= 0.01


def test_mimic_chooses_in_its_first_rounds_and_then_copies() -> None:
    """Every round has another cohort, and in some rounds the copied client does not take part."""
    rng, state, memory, attack, copied = np.random.default_rng(0), {}, {}, Mimic(warmup=3), set()
    everybody = 5 * rng.normal(size=(9, 4))
    for round in range(12):
        ids = sorted(rng.choice(9, 6, replace=False).tolist())
        honest = everybody[ids] + rng.normal(size=(6, 4))
        cohort = SimpleNamespace(rng=lambda name, round=round: make_rng(0, round, "server", name))
        view = AttackerView(torch.from_numpy(honest), ids, 2, cohort, torch.mean)  # type: ignore[arg-type]
        found, state = attack.forge(view, state)
        expected = robust.mimic(honest, 2, ids, round, memory, warmup=3, start=first_direction)
        np.testing.assert_allclose(found.numpy(), expected)
        copied.add(memory["target"] in ids)
    assert copied == {True, False}


def test_a_round_without_attackers_or_without_honest_clients_is_honest() -> None:
    for chosen in ((), tuple(range(8))):
        assert distance(train(Mimic(clients=chosen), rounds=1).state, train(rounds=1).state) < 1e-12


@pytest.mark.slow
def test_the_backdoors_success_is_a_column(tmp_path: Any) -> None:
    runs = [
        fit(tmp_path, Backdoor(clients=who, target=2, share=0.5), clients_per_round=8, rounds=8, local_steps=20, eval_every=8)
        for who in (range(8), ())
    ]
    success = [run.history[-1]["test/backdoor_success"] for run in runs]
    trainer, test = runs[1], TinyData()
    test.setup("fit")
    samples = test.federation.test
    inputs = samples.inputs.double()[samples.targets != 2]
    inputs[:, -3:] = 2.5
    module = classifier().double()
    module.model.load_state_dict(trainer.state)
    with torch.no_grad():
        expected = float((module.model(inputs).argmax(1) == 2).double().mean())
    assert success[1] == pytest.approx(expected) and success[0] > max(0.9, success[1])


def test_attackers_poison_whole_batches_before_methods_see_single_samples() -> None:
    # DPSGD without noise and with a wide bound is the mean over single samples, and so changes nothing.
    bad, single = Backdoor(clients=EVIL, target=2, share=0.25), DPSGD(clip=1e9, noise_multiplier=0.0, repeatable=True)
    alone, before, after = (train(*methods, rounds=2).state for methods in ((bad,), (bad, single), (single, bad)))
    assert distance(before, after) == 0
    assert distance(before, alone) < 1e-9


def test_the_scores_of_attackers_are_in_their_rows_and_in_no_mean(tmp_path: Path) -> None:
    trainer = fit(tmp_path, LabelFlip(clients=(1, 3)), KeepLocal("head"), data=TinyData(client_test=0.3), eval_every=1)
    for of in ("client", "personal"):
        scores = trainer.clients[f"test/{of}_accuracy"]
        assert scores.notna().all() and trainer.history[-1][f"test/{of}_accuracy_mean"] == pytest.approx(
            scores.drop([1, 3]).mean()
        )
