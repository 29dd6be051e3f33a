"""TopK and RandomK send only some numbers of each tensor."""

from functools import partial

import pytest
import torch
from contracts.case import Case
from harness import BatchNormMLP, classifier
from reference import codecs

from flcog.callbacks import Quantize, RandomK, TopK
from flcog.callbacks.codecs.bits import pack_positions, unpack_positions
from flcog.callbacks.codecs.codec import encoded_bytes
from methods.codecs.draws import decoded, positions, uniforms_of

FRACTION = 0.3


def top_k(v: codecs.Vector, u: object, inner: codecs.Compress = lambda v, u: v) -> codecs.Vector:
    return codecs.top_k(v, u, round(FRACTION * len(v)), inner)


def quantized(v: codecs.Vector, u: codecs.Vector) -> codecs.Vector:
    """The values after the inner codec, which leaves fewer than 16 values unchanged."""
    return v if len(v) < 16 else codecs.qsgd(v, u[: len(v)], bits=3, contract=True)


CASES: dict[str, Case] = {
    "TopK": Case(TopK(fraction=FRACTION), partial(codecs.run, compress=top_k), neutral=TopK(fraction=1.0)),
    "TopK with error feedback": Case(
        TopK(fraction=FRACTION, error_feedback=True),
        partial(codecs.run, compress=top_k, feedback=True),
        module=partial(classifier, network=BatchNormMLP),
        neutral=TopK(fraction=1.0, error_feedback=True),
    ),
    "TopK, quantized": Case(
        TopK(fraction=0.4, values=Quantize(bits=3), error_feedback=True),
        partial(
            codecs.run,
            compress=lambda v, u: codecs.top_k(v, u, round(0.4 * len(v)), quantized),
            draws=uniforms_of("TopK", depth=1),
            feedback=True,
        ),
        random=True,
    ),
    "RandomK": Case(
        RandomK(fraction=FRACTION),
        partial(codecs.run, compress=partial(codecs.random_k, scaled=True), draws=partial(positions, FRACTION)),
        neutral=RandomK(fraction=1.0),
        random=True,
    ),
    "RandomK with error feedback": Case(
        RandomK(fraction=FRACTION, error_feedback=True),
        partial(codecs.run, compress=partial(codecs.random_k, scaled=False), draws=partial(positions, FRACTION), feedback=True),
        random=True,
    ),
}


def test_top_k_loses_at_most_its_share_of_the_squared_norm() -> None:
    rng = torch.Generator().manual_seed(0)
    for size in (17, 100, 1000):
        for fraction in (0.01, 0.3, 1.0):
            for v in (torch.randn(size, generator=rng), torch.ones(size), torch.randn(size, generator=rng) ** 5):
                share = 1 - TopK(fraction=fraction)._count(size) / size
                lost = (v - decoded(TopK(fraction=fraction), v)).square().sum() / v.square().sum()
                assert lost <= share + 1e-6
                if v.std() == 0:
                    assert lost == pytest.approx(share, abs=1e-6)


def test_random_k_is_right_on_average_and_contracts_with_error_feedback() -> None:
    v, share = torch.randn(60, generator=torch.Generator().manual_seed(0), dtype=torch.float64), 0.2
    for feedback in (False, True):
        draws = torch.func.vmap(partial(decoded, RandomK(fraction=share, error_feedback=feedback), v))(torch.arange(4000))
        lost = (draws - v).square().sum(1).mean() / v.square().sum()
        assert lost == pytest.approx(1 - share if feedback else 1 / share - 1, rel=0.05)
        torch.testing.assert_close(draws.mean(0), v * (share if feedback else 1), atol=0.25 * float(v.abs().max()), rtol=0)
        assert (draws != 0).sum(1).unique().tolist() == [12]


@pytest.mark.parametrize(("size", "count", "bytes"), [(64, 2, 2), (64, 20, 8), (1000, 10, 13), (1000, 200, 125), (1, 1, 1)])
def test_positions_take_the_shorter_of_two_forms(size: int, count: int, bytes: int) -> None:
    chosen = torch.randperm(size)[:count].sort().values
    packed = pack_positions(chosen, size)
    assert len(packed) == bytes and torch.equal(unpack_positions(packed, count, size), chosen)
    assert encoded_bytes(TopK(fraction=count / size), size, torch.float32) == bytes + 4 * count
