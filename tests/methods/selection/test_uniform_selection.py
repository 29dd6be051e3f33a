"""Uniform selection, with and without unbiased weights."""

from functools import partial

import torch
from contracts.case import Case
from harness import SIZES, train
from reference import horvitz_thompson

from flcog.callbacks import UniformSelection

unbiased = partial(horvitz_thompson.run, probability=lambda client: 5 / 8, num_samples=sum(SIZES))
CASES: dict[str, Case] = {
    "UniformSelection": Case(UniformSelection(unbiased=True), unbiased, neutral=UniformSelection()),
    "UniformSelection-clients": Case(UniformSelection(unbiased="clients"), partial(unbiased, equal_clients=True)),
}


def test_it_selects_whom_a_run_without_it_selects() -> None:
    plain, selected = train(), train(UniformSelection())
    assert [[client.id for client in round] for round in selected.recorded] == [
        [client.id for client in round] for round in plain.recorded
    ]
    assert all(torch.equal(value, plain.state[name]) for name, value in selected.state.items())


def test_all_clients_together_have_the_plain_weights() -> None:
    plain, unbiased = (train(*methods, clients_per_round=1.0) for methods in ((), (UniformSelection(unbiased=True),)))
    for name, value in unbiased.state.items():
        torch.testing.assert_close(value, plain.state[name], rtol=1e-12, atol=1e-12)
