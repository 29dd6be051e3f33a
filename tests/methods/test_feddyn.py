"""FedDyn against its paper, and the model it is evaluated with."""

import math
from dataclasses import replace
from functools import partial

import pytest
from contracts.case import Case, Refusals
from harness import assert_close, distance, train
from reference import feddyn

from flcog.callbacks import EqualWeights, FedDyn, FedProx

pytestmark = pytest.mark.filterwarnings("error")


CASES: dict[str, Case] = {
    "FedDyn": Case(FedDyn(alpha=0.1), partial(feddyn.run, alpha=0.1)),
}


REFUSED: Refusals = {
    FedDyn: [
        ({"alpha": 0.0}, "alpha must be positive; got 0.0"),
        ({"alpha": math.nan}, "alpha must be positive; got nan"),
    ],
}


def test_feddyn_is_evaluated_at_the_mean_of_its_clients() -> None:
    method, clients = FedDyn(alpha=0.1), {"clients_per_round": 5, "rounds": 1}
    dynamic, mean = train(method, **clients), train(FedProx(mu=0.1), EqualWeights(), **clients)
    evaluated = method.evaluate_at(dynamic.servers["FedDyn"], dynamic.params)
    assert_close(evaluated, mean.params, 1e-12)
    assert distance(dynamic.params, mean.params) > 1e-2
    assert replace(method, evaluate_mean=False).evaluate_at(dynamic.servers["FedDyn"], dynamic.params) is dynamic.params
