"""Stragglers gives every client a random number of local steps."""

import itertools

import pytest
from contracts.case import Case, Refusals
from harness import train
from reference import fedavg

from flcog.callbacks import Stragglers

pytestmark = pytest.mark.filterwarnings("error")


CASES: dict[str, Case] = {
    "Stragglers": Case(
        Stragglers(min_steps=1, max_steps=6), fedavg.run, neutral=Stragglers(min_steps=4, max_steps=4), random=True
    ),
}


REFUSED: Refusals = {
    Stragglers: [
        ({"min_steps": 0}, "need 1 <= min_steps <= max_steps; got 0 and 500"),
    ],
}


def test_stragglers_do_what_they_can() -> None:
    trainer = train(Stragglers(min_steps=2, max_steps=5), clients_per_round=8, rounds=8)
    steps = [[len(client.batches) for client in round] for round in trainer.recorded]
    assert set(itertools.chain(*steps)) == {2, 3, 4, 5}
    assert len({tuple(round) for round in steps}) == 8
