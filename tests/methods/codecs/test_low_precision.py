"""LowPrecision sends envelopes of 16-bit numbers."""

from functools import partial

import torch
from contracts.case import Case
from harness import BatchNormMLP, classifier, train
from reference import codecs
from reference.common import State

from flcog.callbacks import LowPrecision
from flcog.callbacks.codecs.codec import Noise
from flcog.wire.envelope import Field


def reference(type: torch.dtype) -> partial[State]:
    return partial(codecs.run, compress=partial(codecs.low_precision, type=type))


CASES: dict[str, Case] = {
    "LowPrecision": Case(LowPrecision(), reference(torch.bfloat16)),
    "LowPrecision fp16": Case(LowPrecision("fp16"), reference(torch.float16), module=partial(classifier, network=BatchNormMLP)),
}


def test_a_run_of_16_bits_has_nothing_to_round() -> None:
    plain, rounded = (train(*methods, precision="bf16-true", rounds=1) for methods in ((), (LowPrecision(),)))
    assert all(torch.equal(plain.params[name], value) for name, value in rounded.params.items())
    assert plain.ledger.up["model"] == rounded.ledger.up["model"]


def test_types_differ_in_range_and_digits() -> None:
    """bf16 has 8 binary digits and float32's range; fp16 has 11 digits, and infinity above 65,504."""
    noise, field = Noise(torch.tensor(0), 0), Field((3,), torch.float32)
    values = torch.tensor([1 + 2.0**-7, 1 + 2.0**-10, 2.0**100])
    expected = {"bf16": [1 + 2.0**-7, 1.0, 2.0**100], "fp16": [1 + 2.0**-7, 1 + 2.0**-10, torch.inf]}
    for type in ("bf16", "fp16"):
        codec = LowPrecision(type)
        assert codec.decode(codec.encode(values, noise), field).tolist() == expected[type]
