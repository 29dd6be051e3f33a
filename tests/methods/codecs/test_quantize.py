"""Quantize rounds numbers to a few bits."""

from functools import partial

import pytest
import torch
from contracts.case import Case
from harness import BatchNormMLP, classifier
from reference import codecs

from flcog.callbacks import Quantize
from flcog.callbacks.codecs.quantize import num_levels
from methods.codecs.draws import decoded, uniforms_of

wide = partial(classifier, network=BatchNormMLP)
CASES: dict[str, Case] = {
    "Quantize": Case(
        Quantize(bits=4), partial(codecs.run, compress=partial(codecs.qsgd, bits=4), draws=uniforms_of("Quantize")), random=True
    ),
    "Quantize in buckets": Case(
        Quantize(bits=2, bucket=12),
        partial(
            codecs.run,
            compress=partial(codecs.in_buckets, compress=partial(codecs.qsgd, bits=2), size=12),
            draws=uniforms_of("Quantize"),
        ),
        random=True,
    ),
    "Quantize with error feedback": Case(
        Quantize(bits=3, error_feedback=True),
        partial(codecs.run, compress=partial(codecs.qsgd, bits=3, contract=True), draws=uniforms_of("Quantize"), feedback=True),
        random=True,
    ),
    "Quantize to the nearest level": Case(
        Quantize(bits=5, stochastic=False), partial(codecs.run, compress=partial(codecs.nearest, bits=5)), module=wide
    ),
}


@pytest.mark.parametrize(("bits", "size"), [(2, 40), (4, 1000), (8, 300)])
def test_the_mean_is_right_and_the_variance_within_the_papers_bound(bits: int, size: int) -> None:
    codec, s = Quantize(bits=bits, bucket=None), num_levels(bits)
    v = torch.randn(size, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    draws = torch.func.vmap(lambda key: decoded(codec, v, key))(torch.arange(2000))
    error = (draws - v).square().sum(1).mean() / v.square().sum()
    assert 0.1 * min(size / s**2, size**0.5 / s) < error < min(size / s**2, size**0.5 / s)
    rest = (s * v.abs() / v.norm()).frac()
    deviations = (draws.mean(0) - v) / (v.norm() / s * (rest * (1 - rest) / 2000).sqrt())
    assert deviations.square().mean() == pytest.approx(1, abs=0.35), "a bias would be many standard errors"


def test_the_nearest_level_is_at_most_half_a_step_away() -> None:
    v = torch.randn(1000, dtype=torch.float64)
    for bits in (2, 9, 16):
        steps = v.view(-1, 100).abs().amax(1) / num_levels(bits)
        error = (decoded(Quantize(bits=bits, stochastic=False, bucket=100), v) - v).view(-1, 100).abs()
        assert (error <= steps[:, None] * (0.5 + 1e-9)).all() and (error.amax(1) > 0.4 * steps).all()


def test_all_levels_of_the_bits_are_used() -> None:
    """One bit is the sign, so that b bits have 2^(b - 1) - 1 levels on each side of 0."""
    for bits in (2, 3, 8):
        v = torch.linspace(-1, 1, 2001, dtype=torch.float64)
        levels = decoded(Quantize(bits=bits, stochastic=False, bucket=None), v).unique()
        torch.testing.assert_close(levels, torch.linspace(-1, 1, 2**bits - 1, dtype=torch.float64))
    # The norm is below 1.2, so each number but 0 is rounded to either of two levels.
    v = torch.tensor([1.0, 0.5, 0.25, 0.0], dtype=torch.float64)
    found = torch.func.vmap(lambda key: decoded(Quantize(bits=4, bucket=None), v, key))(torch.arange(200)) / v.norm() * 7
    assert torch.equal(found.round().unique(), torch.tensor([0, 1, 2, 3, 4, 6, 7], dtype=torch.float64))
    torch.testing.assert_close(found, found.round())


@pytest.mark.parametrize("stochastic", [True, False])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_zeros_and_the_longest_numbers_come_back(stochastic: bool, dtype: torch.dtype) -> None:
    codec = Quantize(bits=3, stochastic=stochastic, bucket=None)
    assert decoded(codec, torch.zeros(20, dtype=dtype)).abs().max() == 0
    alone = torch.zeros(20, dtype=dtype)
    alone[7] = -3.0
    assert torch.equal(decoded(codec, alone).to(dtype), alone)
