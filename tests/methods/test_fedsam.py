"""FedSAM and ASAM against their papers, and the statistics and losses of their two passes."""

from functools import partial

import pytest
from contracts.case import Case
from harness import MOMENTUM, BatchNormMLP, assert_close, classifier, distance, train
from reference import fedsam

from flcog.callbacks import FedSAM

pytestmark = pytest.mark.filterwarnings("error")


CASES: dict[str, Case] = {
    "FedSAM": Case(FedSAM(rho=0.3), partial(fedsam.run, rho=0.3), neutral=FedSAM(rho=0.0)),
    "FedSAM-adaptive": Case(
        FedSAM(rho=0.7, adaptive=True, eta=0.2),
        partial(fedsam.run, rho=0.7, adaptive=True, eta=0.2),
        neutral=FedSAM(rho=0.0, adaptive=True),
        optimizer=MOMENTUM,
    ),
}


@pytest.mark.parametrize("executor", ["loop", "vmap"])
def test_fedsam_leaves_the_trace_of_one_pass(executor: str) -> None:
    """Statistics and the reported loss come only from the pass at the client's own parameters, not from the perturbed pass."""
    plain, sharp = (
        train(*methods, module=classifier(network=BatchNormMLP), executor=executor, local_steps=1, rounds=1)
        for methods in ((), (FedSAM(rho=0.3),))
    )
    assert_close(sharp.buffers, plain.buffers, 1e-12)
    assert sharp.rows[0]["train/loss"] == pytest.approx(plain.rows[0]["train/loss"], rel=1e-12)
    assert distance(sharp.params, plain.params) > 1e-4
