"""RotatedQuantize rounds numbers to a few bits after a random rotation."""

from functools import partial

import pytest
import torch
from contracts.case import Case
from reference import codecs

from flcog.callbacks import Quantize, RotatedQuantize
from flcog.callbacks.codecs.quantize import rotated
from methods.codecs.draws import decoded, signs_and_uniforms

CASES: dict[str, Case] = {
    "RotatedQuantize": Case(
        RotatedQuantize(bits=3),
        partial(codecs.run, compress=partial(codecs.rotated, bits=3), draws=signs_and_uniforms),
        random=True,
    ),
    "RotatedQuantize with error feedback": Case(
        RotatedQuantize(bits=2, error_feedback=True),
        partial(codecs.run, compress=partial(codecs.rotated, bits=2, contract=True), draws=signs_and_uniforms, feedback=True),
        random=True,
    ),
}


def test_the_rotation_keeps_the_norm_and_is_its_own_inverse() -> None:
    rows = torch.randn(3, 128, dtype=torch.float64)
    torch.testing.assert_close(rotated(rotated(rows)), rows)
    torch.testing.assert_close(rotated(rows).norm(dim=1), rows.norm(dim=1))


def test_the_mean_is_right_and_an_outlier_costs_no_precision() -> None:
    v = torch.randn(200, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    v[3] = 50.0
    codecs = (RotatedQuantize(bits=4), Quantize(bits=4))
    turned, plain = (torch.func.vmap(partial(decoded, codec, v))(torch.arange(2000)) for codec in codecs)
    errors = [float((each - v).square().sum(1).mean() / v.square().sum()) for each in (turned, plain)]
    assert errors[0] < errors[1] and errors[0] < 2 * torch.log(torch.tensor(256.0)) / 7**2
    standard = turned.std(0) / 2000**0.5
    assert ((turned.mean(0) - v) / standard).square().mean() == pytest.approx(1, abs=0.4)
