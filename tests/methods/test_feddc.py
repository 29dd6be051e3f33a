"""FedDC against its paper: the optimum that it reaches, the states that it keeps, and its bytes."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from contracts.case import Case
from harness import MOMENTUM, RAGGED, assert_close, classifier, fit, steep_network, train
from reference import feddc
from torch import nn

from flcog.callbacks import FedDC, FedDCInFedDisco
from flcog.datamodules.quadratics import LeastSquares, Quadratics
from flcog.method import Callback

pytestmark = pytest.mark.filterwarnings("error")


CASES: dict[str, Case] = {
    "FedDC": Case(FedDC(alpha=0.3), partial(feddc.run, alpha=0.3)),
    "FedDC-momentum": Case(FedDC(alpha=0.1), partial(feddc.run, alpha=0.1, momentum=0.9), optimizer=MOMENTUM, options=RAGGED),
    "FedDC-feddisco": Case(FedDCInFedDisco(alpha=0.3), partial(feddc.run_feddisco, alpha=0.3, mean_size=10), optimizer=MOMENTUM),
    "FedDC-feddisco-clipped": Case(
        FedDCInFedDisco(alpha=0.01),
        partial(feddc.run_feddisco, alpha=0.01, mean_size=10),
        module=partial(classifier, network=steep_network),
    ),
}


def test_feddc_reaches_the_optimum_that_fedavg_misses() -> None:
    def error(*methods: Callback) -> float:
        data = Quadratics(num_clients=3, zeta=5.0, dimension=2, samples_per_client=4, batch_size=4)
        module = LeastSquares(nn.Linear(1, 2, bias=False), partial(torch.optim.SGD, lr=0.08))
        options: dict[str, Any] = {"rounds": 12, "clients_per_round": 3, "local_steps": 5, "executor": "vmap"}
        trainer = train(*methods, module=module, data=data, **options)
        return float((trainer.run.params["model.weight"].squeeze(1) - data.optimum).norm())

    assert error() > 0.1
    assert error(FedDC(alpha=0.1)) < 0.005


@pytest.mark.slow
def test_feddc_is_evaluated_at_the_mean_of_its_clients(tmp_path: Path) -> None:
    trainer = fit(tmp_path, FedDC(alpha=0.2), eval_every=1)
    mean = {name: value - trainer.run.server.servers["FedDC"]["h"][name] for name, value in trainer.run.params.items()}
    losses = [
        float(fit(tmp_path, FedDC(alpha=0.2, evaluate_mean=of), eval_every=3).history[-1]["test/loss"]) for of in (True, False)
    ]
    for params, loss in zip((mean, trainer.run.params), losses, strict=True):
        test = trainer.run.federation.test
        outputs = trainer.run.model.frozen(params, {}, lambda module, x: module(x), test.inputs.double())
        assert loss == pytest.approx(float(F.cross_entropy(outputs, test.targets)), rel=1e-6)


def test_feddc_sends_two_models_up_and_two_down() -> None:
    trainer = train(FedDC(), rounds=1)
    # The delta updates both the model and the drift, and is sent once; the server's h is not sent.
    assert (
        trainer.run.ledger.up["FedDC"]
        == trainer.run.ledger.down["FedDC"]
        == trainer.run.ledger.up["model"]
        == trainer.run.ledger.down["model"]
    )


@pytest.mark.slow
def test_feddc_server_keeps_the_mean_of_all_clients_drifts(tmp_path: Path) -> None:
    trainer = fit(tmp_path, FedDC(alpha=0.2), eval_every=1)
    slots = [trainer.run.clients.by_client.get(client, {}).get("FedDC") for client in range(8)]
    assert None in slots, "some client should not have taken part"
    for state in ("h", "g"):
        total = {name: torch.zeros_like(value) for name, value in trainer.run.params.items()}
        for slot in slots:
            total = {name: value + (0 if slot is None else slot[state][name]) for name, value in total.items()}
        assert_close({name: value / 8 for name, value in total.items()}, trainer.run.server.servers["FedDC"][state], 1e-12)
