"""Robust rules and pre-aggregations give the same results as byzfl's, which computes in float32."""

import pytest
import torch

from flcog.callbacks import (
    AdaptiveRobustClipping,
    CenteredClipping,
    CoordinateMedian,
    GeometricMedian,
    Krum,
    MultiKrum,
    NearestNeighbourMixing,
    StaticClipping,
    TrimmedMean,
)
from flcog.method import UploadMatrix

byzfl = pytest.importorskip("byzfl")
pytestmark = pytest.mark.slow


@pytest.mark.parametrize("count", [11, 16])
def test_rules_and_pre_aggregations(count: int) -> None:
    values = torch.randn(count, 40, generator=torch.Generator().manual_seed(0))
    values[:2] += 20
    uploads, f = UploadMatrix(values, torch.full((count,), 1 / count, dtype=torch.float64)), 2
    rules = [
        (CoordinateMedian(), byzfl.Median()),
        (TrimmedMean(f=f), byzfl.TrMean(f)),
        (Krum(f=f), byzfl.Krum(f)),
        (MultiKrum(f=f), byzfl.MultiKrum(f)),
        (GeometricMedian(steps=3, nu=0.1), byzfl.GeometricMedian(nu=0.1, T=3)),
        (CenteredClipping(radius=3.0, steps=2), byzfl.CenteredClipping(L=2, tau=3.0)),
    ]
    for rule, other in rules:
        torch.testing.assert_close(rule.combine(uploads, {})[0], other(values), rtol=1e-4, atol=1e-4, msg=rule.name)
    changes = [
        (NearestNeighbourMixing(f=f), byzfl.NNM(f)),
        (StaticClipping(norm=3.0), byzfl.Clipping(3.0)),
        (AdaptiveRobustClipping(f=f), byzfl.ARC(f)),
    ]
    for change, other in changes:
        changed, _ = change.change(uploads, {}, None, uploads.__class__.mean)  # type: ignore[arg-type]
        torch.testing.assert_close(changed.values, other(values), rtol=1e-4, atol=1e-4, msg=change.name)
