"""FedDyn against its paper, and the model it is evaluated with."""

from dataclasses import replace
from functools import partial

import pytest
from contracts.case import Case
from harness import MOMENTUM, assert_close, classifier, distance, steep_network, train
from reference import feddyn

from flcog.callbacks import EqualWeights, FedDyn, FedDynInFedDisco, FedProx

pytestmark = pytest.mark.filterwarnings("error")


CASES: dict[str, Case] = {
    "FedDyn": Case(FedDyn(alpha=0.1), partial(feddyn.run, alpha=0.1)),
    "FedDyn-feddisco": Case(
        FedDynInFedDisco(alpha=0.1), partial(feddyn.run_feddisco, alpha=0.1, mean_size=10), optimizer=MOMENTUM
    ),
    "FedDyn-feddisco-clipped": Case(
        FedDynInFedDisco(alpha=0.01),
        partial(feddyn.run_feddisco, alpha=0.01, mean_size=10),
        module=partial(classifier, network=steep_network),
    ),
}


def test_feddyn_is_evaluated_at_the_mean_of_its_clients() -> None:
    method, clients = FedDyn(alpha=0.1), {"clients_per_round": 5, "rounds": 1}
    dynamic, mean = train(method, **clients), train(FedProx(mu=0.1), EqualWeights(), **clients)
    evaluated = method.evaluate_at(dynamic.servers["FedDyn"], dynamic.params)
    assert_close(evaluated, mean.params, 1e-12)
    assert distance(dynamic.params, mean.params) > 1e-2
    assert replace(method, evaluate_mean=False).evaluate_at(dynamic.servers["FedDyn"], dynamic.params) is dynamic.params
