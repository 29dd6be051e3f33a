"""The bytes that methods send, as a multiple of the bytes of the model."""

from typing import Any

import pytest
from harness import classifier, train

from flcog.callbacks import SCAFFOLD, EqualWeights, FedAdam, FedAvgM, FedDisco, FedDyn, FedNova, FedProx, FedSAM
from flcog.method import Method

pytestmark = pytest.mark.filterwarnings("error")


@pytest.mark.slow
def test_what_methods_send() -> None:
    def bytes_of(method: Method, **options: Any) -> tuple[float, float]:
        ledger = train(method, clients_per_round=8, rounds=2, **options).ledger
        return ledger.up[method.name] / ledger.up["model"], ledger.down[method.name] / ledger.down["model"]

    num_params = sum(p.numel() for p in classifier().parameters())
    assert bytes_of(SCAFFOLD()) == (1, 1)
    for free in (FedProx(), FedAvgM(), FedAdam(), FedDyn(), FedSAM(), EqualWeights()):
        assert bytes_of(free) == (0, 0)
    for executor in ("loop", "vmap"):
        assert bytes_of(FedNova(), executor=executor) == (1 / num_params, 0)
    # Each client sends one float32 in the first of two rounds; the models are float64. With target="global", three counts are
    # also sent in each direction before it.
    assert bytes_of(FedDisco()) == (4 / 8 / 2 / num_params, 0)
    assert bytes_of(FedDisco(target="global")) == (4 * 4 / 8 / 2 / num_params, 3 * 4 / 8 / 2 / num_params)
