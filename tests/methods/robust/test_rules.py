"""Robust rules agree with numpy versions of their papers, combine the whole envelope, and need enough uploads."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from contracts.case import Case
from harness import SGD, BatchNormMLP, assert_close, classifier, distance, problem_of, train
from reference import robust
from torch import Tensor

from flcog.callbacks import (
    SCAFFOLD,
    Bulyan,
    CenteredClipping,
    CoordinateMedian,
    EqualWeights,
    FedDisco,
    GeometricMedian,
    Krum,
    MultiKrum,
    NormBound,
    PoissonSampling,
    Quantize,
    TrimmedMean,
)
from flcog.core.types import Params, Slot
from flcog.method import Context, Method, Upload, UploadAggregator, UploadMatrix

# random=True skips the contracts of equal clients, whose one or three clients are too few for f = 1.
few = partial(Case, random=True)
CASES: dict[str, Case] = {
    "CoordinateMedian": Case(CoordinateMedian(), partial(robust.run, rule=robust.median)),
    "CoordinateMedian with statistics": Case(
        CoordinateMedian(), partial(robust.run, rule=robust.median), module=partial(classifier, network=BatchNormMLP)
    ),
    "TrimmedMean": few(TrimmedMean(f=1), partial(robust.run, rule=robust.trimmed_mean), neutral=TrimmedMean(f=0)),
    "Krum": few(Krum(f=1), partial(robust.run, rule=robust.krum)),
    "MultiKrum": few(MultiKrum(f=1), partial(robust.run, rule=robust.multi_krum), neutral=MultiKrum(f=0)),
    "Bulyan": few(Bulyan(f=1), partial(robust.run, rule=robust.bulyan), options={"clients_per_round": 7}, neutral=Bulyan(f=0)),
    "GeometricMedian": Case(
        GeometricMedian(), partial(robust.run, rule=robust.geometric_median), neutral=GeometricMedian(nu=1e9)
    ),
    "CenteredClipping": Case(
        CenteredClipping(radius=0.2),
        partial(robust.run, rule=robust.centered_clipping, radius=0.2),
        neutral=CenteredClipping(radius=1e9),
    ),
    "NormBound": Case(NormBound(norm=0.2), partial(robust.run, rule=robust.norm_bound, norm=0.2), neutral=NormBound(norm=1e9)),
}
RULES: list[tuple[UploadAggregator, Callable[..., Any]]] = [
    (CoordinateMedian(), robust.median),
    (TrimmedMean(f=3), partial(robust.trimmed_mean, f=3)),
    (Krum(f=4), partial(robust.krum, f=4)),
    (Krum(f=4, power=4), partial(robust.krum, f=4, power=4)),
    (MultiKrum(f=4), partial(robust.multi_krum, f=4)),
    (MultiKrum(f=4, keep=2), partial(robust.multi_krum, f=4, keep=2)),
    (Bulyan(f=2), partial(robust.bulyan, f=2)),
    (GeometricMedian(), robust.geometric_median),
    (GeometricMedian(nu=5.0), partial(robust.geometric_median, nu=5.0)),
    (GeometricMedian(steps=40, nu=1e-3), partial(robust.geometric_median, steps=40, nu=1e-3)),
    (NormBound(norm=2.0), partial(robust.norm_bound, norm=2.0)),
]


def rows(count: int, equal: bool, seed: int = 0) -> UploadMatrix:
    """Random uploads. The first three are outliers, and two others are equal."""
    rng = np.random.default_rng(seed)
    values = rng.normal(size=(count, 9)) + 30 * (np.arange(count) < 3)[:, None]
    values[5] = values[6]
    weights = np.full(count, 1 / count) if equal else rng.dirichlet(np.full(count, 3.0))
    return UploadMatrix(torch.from_numpy(values), torch.from_numpy(weights), list(range(count)))


@pytest.mark.parametrize(("rule", "reference"), RULES, ids=lambda value: getattr(value, "name", ""))
@pytest.mark.parametrize("equal", [True, False])
@pytest.mark.parametrize("count", [11, 12])
def test_rules_against_numpy(rule: UploadAggregator, reference: Callable[..., Any], equal: bool, count: int) -> None:
    uploads = rows(count, equal)
    found, _ = rule.combine(uploads, {})
    torch.testing.assert_close(found.numpy(), reference(uploads.values.numpy(), uploads.weights.numpy()), rtol=1e-12, atol=1e-12)


def test_centered_clipping_starts_from_its_last_aggregate() -> None:
    rule, state, last = CenteredClipping(radius=1.5, steps=2), {}, None
    for seed in range(3):
        uploads = rows(11, equal=False, seed=seed)
        found, state = rule.combine(uploads, state)
        last = robust.centered_clipping(uploads.values.numpy(), uploads.weights.numpy(), last, radius=1.5, steps=2)
        torch.testing.assert_close(found.numpy(), last, rtol=1e-12, atol=1e-12)
    shorter = UploadMatrix(uploads.values[:, :4], uploads.weights)
    torch.testing.assert_close(rule.combine(shorter, state)[0], rule.combine(shorter, {})[0])


def test_fourth_powers_choose_another_upload() -> None:
    """Sums over the four nearest of 1, 2, 3, 5, 7 and 8: squares give 25 for 3 and 26 for 5, fourth powers 289 and 194."""
    values = torch.tensor([[3.0], [7.0], [8.0], [2.0], [1.0], [5.0]])
    uploads = UploadMatrix(values, torch.full((6,), 1 / 6))
    assert [float(Krum(f=0, power=power).combine(uploads, {})[0]) for power in (2, 4)] == [3, 5]


@dataclass(frozen=True)
class First(UploadAggregator):
    """A rule that returns the first client's upload."""

    def combine(self, uploads: UploadMatrix, server: Slot) -> tuple[Tensor, Slot]:
        return uploads.values[0], server


@pytest.mark.parametrize("executor", ["loop", "vmap"])
def test_messages_and_buffers_are_combined_like_the_model(executor: str) -> None:
    """The result is as if all clients had sent the first client's upload: SCAFFOLD's c moves by 5 / 8 of its change."""
    module = partial(classifier, SGD, BatchNormMLP)
    trainer = train(SCAFFOLD(), First(), module=module(), rounds=1, executor=executor)
    problem = problem_of(trainer, module(), SGD)
    chosen = min(problem.rounds[0], key=lambda client: client.id)
    alone = robust.train(problem, problem.model, chosen).state_dict()
    assert_close(trainer.state, alone)
    start, travelled = problem.model.state_dict(), 0.1 * len(chosen.batches)
    for name, value in trainer.servers["SCAFFOLD"]["c"].items():
        key = name.removeprefix("model.")
        torch.testing.assert_close(value, 5 / 8 * (start[key] - alone[key]) / travelled, rtol=1e-9, atol=1e-12)


class Repeating(Method):
    """Sends the change of the model a second time, in a message."""

    def finish_client(self, delta: Params, params: Params, ctx: Context) -> Upload:
        return Upload(delta, None, sum={"delta": delta})


@pytest.mark.parametrize("codec", [[], [Quantize(bits=8)]], ids=["plain", "encoded"])
@pytest.mark.parametrize("options", [{"chunk_size": 1}, {"chunk_size": 3}, {"executor": "vmap"}], ids=str)
def test_a_tensor_that_is_sent_twice_counts_once(options: dict[str, Any], codec: list[Method]) -> None:
    once, twice = (train(*methods, NormBound(norm=0.05), *codec, **options).params for methods in ((), (Repeating(),)))
    assert all(torch.equal(twice[name], value) for name, value in once.items())


def test_rules_use_the_weights_of_other_methods() -> None:
    for rule in (CoordinateMedian(), GeometricMedian(), MultiKrum(f=1)):
        plain, disco, equal = (train(*methods, rule, rounds=1).state for methods in ((), (FedDisco(a=0.9),), (EqualWeights(),)))
        assert distance(plain, disco) > 1e-6 < distance(plain, equal), rule.name


@pytest.mark.parametrize("rule", [TrimmedMean(f=1), MultiKrum(f=1, keep=3), Bulyan(f=1)])
def test_uploads_of_weight_0_count_equally_if_a_rule_keeps_no_others(rule: UploadAggregator) -> None:
    # The outer rows hold all of the weight. Each rule keeps only rows between them.
    values = torch.tensor([[-90.0], [-1.0], [0.5], [1.0], [1.25], [3.0], [80.0]])
    weights = torch.tensor([0.5, 0, 0, 0, 0, 0, 0.5], dtype=torch.float64)
    kept = {"TrimmedMean": [-1, 0.5, 1, 1.25, 3], "MultiKrum": [0.5, 1, 1.25], "Bulyan": [0.5, 1, 1.25]}[rule.name]
    assert float(rule.combine(UploadMatrix(values, weights), {})[0]) == pytest.approx(np.mean(kept))


def test_its_place_in_the_list_does_not_matter() -> None:
    one, other = (train(*methods, rounds=2).state for methods in ((Krum(f=1), SCAFFOLD()), (SCAFFOLD(), Krum(f=1))))
    assert distance(one, other) == 0


def test_one_attacker_moves_a_mean_and_no_rule() -> None:
    @dataclass(frozen=True)
    class Far(First):
        """Replaces the first upload by an outlier, and returns the mean or the result of a rule."""

        rule: Method | None = None

        def combine(self, uploads: UploadMatrix, server: Slot) -> tuple[Tensor, Slot]:
            uploads.values[0] = 1e6
            if not isinstance(self.rule, UploadAggregator):
                return uploads.mean(), server
            return self.rule.combine(uploads, {})[0], server

    start = classifier().double().model.state_dict()
    for rule, _ in [
        *RULES[:1],
        (TrimmedMean(f=1), 0),
        (Krum(f=1), 0),
        (MultiKrum(f=1), 0),
        (GeometricMedian(), 0),
        (CenteredClipping(1.0), 0),
    ]:
        assert distance(train(Far(rule), rounds=1).state, start) < 5, rule.name
    assert distance(train(Far(), rounds=1).state, start) > 1e4


@pytest.mark.parametrize(
    ("methods", "says"),
    [
        ([Krum(f=2)], "Krum needs at least 7 uploads and gets 5, because a round has 5 clients: lower f, or raise"),
        ([CoordinateMedian(), GeometricMedian()], "CoordinateMedian and GeometricMedian both replace the mean"),
    ],
)
def test_runs_that_cannot_be(methods: list[Method], says: str) -> None:
    with pytest.raises(ValueError, match=says) as caught:
        train(*methods, rounds=1)
    assert "\n" not in str(caught.value)


def test_a_round_with_too_few_uploads_leaves_the_model() -> None:
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        trainer = train(Krum(f=1), PoissonSampling(rate=0.65, at_most=None), rounds=6)
    counts = [row["clients/participating"] for row in trainer.rows]
    expected = [
        f"round {i + 1}: Krum needs at least 5 uploads and gets {int(n)}; the model stays as it was"
        for i, n in enumerate(counts)
        if 0 < n < 5
    ]
    assert expected and [str(one.message) for one in said if "Krum" in str(one.message)] == expected
    assert len(expected) < 6
