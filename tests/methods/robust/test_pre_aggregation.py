"""Pre-aggregations, which change uploads before a robust rule, agree with numpy."""

from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from contracts.case import Case
from harness import distance, train
from reference import robust

from flcog.callbacks import (
    AdaptiveRobustClipping,
    Bucketing,
    CoordinateMedian,
    Krum,
    NearestNeighbourMixing,
    NormBound,
    StaticClipping,
)
from flcog.core.randomness import make_rng
from flcog.method import Method, UploadChange, UploadMatrix


def in_buckets(rows: Any, weights: Any, round: int) -> tuple[Any, Any]:
    """Averages buckets of uploads in the order that a run with seed 0, the test harness's seed, draws."""
    order = torch.randperm(len(rows), generator=make_rng(0, round, "server", "Bucketing")).numpy()
    return robust.bucketing(rows, weights, order)


def mixed(rows: Any, weights: Any, round: int) -> tuple[Any, Any]:
    return robust.mixing(rows, weights)


def shortened(rows: Any, weights: Any, round: int) -> tuple[Any, Any]:
    return robust.static_clipping(rows, weights, 0.2)


def adapted(rows: Any, weights: Any, round: int) -> tuple[Any, Any]:
    return robust.adaptive_clipping(rows, weights)


# random=True skips the contracts of equal clients: buckets are random, and one client is too few for f = 1.
before_median = partial(Case, random=True, beside=(CoordinateMedian(),))
CASES: dict[str, Case] = {
    "Bucketing": before_median(
        Bucketing(s=2), partial(robust.run, rule=robust.median, before=in_buckets), neutral=Bucketing(s=1)
    ),
    "NearestNeighbourMixing": before_median(
        NearestNeighbourMixing(f=1), partial(robust.run, rule=robust.median, before=mixed), rtol=1e-8
    ),
    "NearestNeighbourMixing alone": Case(
        NearestNeighbourMixing(f=1), partial(robust.run, before=mixed), random=True, neutral=NearestNeighbourMixing(f=0)
    ),
    "StaticClipping": before_median(
        StaticClipping(norm=0.2), partial(robust.run, rule=robust.median, before=shortened), neutral=StaticClipping(norm=1e9)
    ),
    "AdaptiveRobustClipping": before_median(
        AdaptiveRobustClipping(f=1),
        partial(robust.run, rule=robust.median, before=adapted),
        neutral=AdaptiveRobustClipping(f=0),
    ),
}


@pytest.mark.parametrize(
    ("methods", "says"),
    [
        ([Bucketing(s=2), Krum(f=1)], "Krum needs at least 5 uploads and gets 3 from Bucketing, because a round has 5 clients"),
        ([NearestNeighbourMixing(f=3)], "NearestNeighbourMixing needs at least 7 uploads and gets 5"),
    ],
)
def test_f_counts_after_bucketing(methods: list[Method], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        train(*methods, rounds=1)


@pytest.mark.parametrize(
    ("change", "reference"),
    [
        (AdaptiveRobustClipping(f=3), partial(robust.adaptive_clipping, f=3)),
        (NearestNeighbourMixing(f=3), partial(robust.mixing, f=3)),
        (StaticClipping(norm=2.0), partial(robust.static_clipping, norm=2.0)),
    ],
    ids=["AdaptiveRobustClipping", "NearestNeighbourMixing", "StaticClipping"],
)
def test_changes_against_numpy(change: UploadChange, reference: Any) -> None:
    rng = np.random.default_rng(0)
    values, weights = rng.normal(size=(11, 9)), rng.dirichlet(np.full(11, 3.0))
    uploads = UploadMatrix(torch.from_numpy(values), torch.from_numpy(weights))
    found, _ = change.change(uploads, {}, None, UploadMatrix.mean)  # type: ignore[arg-type]
    np.testing.assert_allclose(found.values.numpy(), reference(values, weights)[0], rtol=1e-12)


@pytest.mark.parametrize("change", [Bucketing(s=2), NearestNeighbourMixing(f=2)], ids=lambda change: change.name)
def test_groups_of_uploads_with_weight_0_have_equal_means(change: UploadChange) -> None:
    values, weights = torch.full((6, 4), 10.0), torch.tensor([1.0, 0, 0, 0, 0, 0], dtype=torch.float64)
    cohort = SimpleNamespace(rng=lambda name: make_rng(0, 0, "server", name))
    found, _ = change.change(UploadMatrix(values, weights), {}, cohort, UploadMatrix.mean)  # type: ignore[arg-type]
    assert found.values.unique().tolist() == [10.0] and found.weights.sum() == 1


def test_they_act_in_the_order_of_the_list_and_before_the_rule() -> None:
    clip, mix, rule = StaticClipping(norm=0.2), NearestNeighbourMixing(f=1), CoordinateMedian()
    ends = [train(*methods, rounds=1).state for methods in ((clip, mix, rule), (rule, clip, mix), (mix, clip, rule))]
    assert distance(ends[0], ends[1]) == 0 and distance(ends[0], ends[2]) > 1e-6


def test_without_a_rule_buckets_keep_the_mean() -> None:
    plain, bucketed = (train(*methods).state for methods in ((), (Bucketing(s=2),)))
    assert distance(plain, bucketed) < 1e-12
    norm = 0.2
    assert distance(train(StaticClipping(norm=norm)).state, train(NormBound(norm=norm)).state) < 1e-12
