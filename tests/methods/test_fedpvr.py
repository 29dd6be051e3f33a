"""FedPVR against its paper, and SCAFFOLD as its special case."""

from functools import partial

import pytest
from contracts.case import Case
from harness import MOMENTUM, RAGGED, assert_close, distance, train
from reference import fedpvr

from flcog.callbacks import SCAFFOLD
from flcog.callbacks.fedpvr import FedPVR

pytestmark = pytest.mark.filterwarnings("error")


CASES: dict[str, Case] = {
    "FedPVR": Case(FedPVR(), partial(fedpvr.run, corrected=["head.weight", "head.bias"])),
    "FedPVR-hidden": Case(
        FedPVR(layers=r"hidden\.0\.weight|head"),
        partial(fedpvr.run, corrected=["hidden.0.weight", "head.weight", "head.bias"], momentum=0.9),
        optimizer=MOMENTUM,
        options=RAGGED,
    ),
}


def test_fedpvr_on_every_layer_is_scaffold() -> None:
    assert_close(train(FedPVR(layers="")).state, train(SCAFFOLD()).state, 1e-12)
    assert distance(train(FedPVR()).state, train(SCAFFOLD()).state) > 1e-5


def test_only_the_chosen_control_variates_cross_the_wire() -> None:
    trainer = train(FedPVR(), rounds=1)
    head = 5 * 8 * sum(trainer.run.params[name].numel() for name in ("model.head.weight", "model.head.bias"))
    assert trainer.run.ledger.up["FedPVR"] == trainer.run.ledger.down["FedPVR"] == head
