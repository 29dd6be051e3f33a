"""With error feedback, compressed gradients find the optimum of a quadratic, which the codec alone misses."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from flcog.callbacks import LowPrecision, Quantize, RandomK, RotatedQuantize, SignSGD, TopK
from flcog.callbacks.codecs.codec import Codec, Noise
from flcog.method import Context, Envelope, GlobalModel
from flcog.wire.envelope import Field, fields_of

BIASED: list[Codec] = [
    TopK(fraction=0.1),
    SignSGD(),
    Quantize(bits=2, stochastic=False),
    TopK(fraction=0.25, values=Quantize(bits=3)),
    TopK(fraction=0.5, values=SignSGD()),
]
UNBIASED: list[Codec] = [RandomK(fraction=0.2), Quantize(bits=2), RotatedQuantize(bits=2)]
SIZE, CLIENTS = 64, 4


def distance_from_the_optimum(codec: Codec, rounds: int = 200) -> float:
    """The relative distance from the optimum after descent on the clients' quadratics c_k / 2 ||x - b_k||^2.

    At the common optimum, the clients' gradients are large and cancel each other.
    """
    rng = torch.Generator().manual_seed(0)
    centres = 3 * torch.randn(CLIENTS, SIZE, generator=rng, dtype=torch.float64) ** 3
    curvatures = torch.linspace(0.5, 1.5, CLIENTS, dtype=torch.float64)
    optimum = (curvatures[:, None] * centres).sum(0) / curvatures.sum()
    x = torch.zeros(SIZE, dtype=torch.float64)
    received = GlobalModel({}, {})

    def upload(gradient: Tensor, state: dict[str, Tensor], key: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        context = Context(received, {}, state, {"key": key}, {}, {}, 0, 1, None, None)  # type: ignore[arg-type]
        envelope = Envelope({"x": gradient}, {})
        encoded, new = codec.send(envelope, context)
        return codec.receive(encoded, fields_of(envelope), received).delta["x"], new

    state: dict[str, Tensor] = {}
    for round in range(rounds):
        gradients = curvatures[:, None] * (x - centres)
        keys = torch.arange(CLIENTS) + CLIENTS * round
        sent, state = torch.func.vmap(upload)(-gradients * 4 / (round + 20), state, keys)
        x = x + sent.mean(0)
    return float((x - optimum).norm() / optimum.norm())


@pytest.mark.parametrize("codec", BIASED, ids=repr)
@pytest.mark.slow
def test_the_optimum_is_found_only_with_error_feedback(codec: Codec) -> None:
    plain, fed_back = (distance_from_the_optimum(replace(codec, error_feedback=on)) for on in (False, True))
    assert fed_back < 0.2 and fed_back < 0.25 * plain


@pytest.mark.parametrize("codec", [*UNBIASED, LowPrecision()], ids=repr)
@pytest.mark.slow
def test_unbiased_codecs_find_it_too(codec: Codec) -> None:
    assert distance_from_the_optimum(replace(codec, error_feedback=True)) < 0.1


@pytest.mark.parametrize("codec", [*BIASED, *UNBIASED, LowPrecision()], ids=repr)
def test_codecs_contract_with_error_feedback(codec: Codec) -> None:
    """The expected squared error is smaller than the squared norm, also for equal numbers, single outliers and heavy tails."""
    rng = torch.Generator().manual_seed(0)
    alone = torch.zeros(200, dtype=torch.float64)
    alone[5] = 1.0
    for v in (torch.ones(200, dtype=torch.float64), alone, torch.randn(200, generator=rng, dtype=torch.float64) ** 3):

        def lost(key: Tensor, v: Tensor = v) -> Tensor:
            sender = replace(codec, error_feedback=True)
            return v - sender.decode(sender.encode(v, Noise(key, 0)), Field((200,), v.dtype))

        error = float(torch.func.vmap(lost)(torch.arange(300)).square().sum(1).mean() / v.square().sum())
        assert error < 1 - 1 / 300 and math.isfinite(error)
