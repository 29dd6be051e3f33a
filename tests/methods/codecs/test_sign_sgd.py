"""One bit for each number."""

from functools import partial

import torch
from contracts.case import Case
from harness import BatchNormMLP, classifier
from reference import codecs

from flcog.callbacks import SignSGD
from flcog.callbacks.codecs.codec import Noise, encoded_bytes
from flcog.wire.envelope import Field

CASES: dict[str, Case] = {
    "SignSGD": Case(SignSGD(), partial(codecs.run, compress=codecs.sign_sgd)),
    "SignSGD with error feedback": Case(
        SignSGD(error_feedback=True),
        partial(codecs.run, compress=codecs.sign_sgd, feedback=True),
        module=partial(classifier, network=BatchNormMLP),
    ),
}


def test_a_number_costs_one_bit() -> None:
    assert encoded_bytes(SignSGD(), 801, torch.float32) == 101 + 4
    v = torch.randn(801)
    back = SignSGD().decode(SignSGD().encode(v, Noise(torch.tensor(0), 0)), Field((801,), v.dtype))
    assert torch.equal(back.sign(), v.sign()) and torch.allclose(back.abs(), v.abs().mean())
