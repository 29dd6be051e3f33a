"""RoundRobin lets clients take turns."""

from contracts.case import Case
from harness import train
from reference import fedavg

from flcog.callbacks import ClientDropout, RoundRobin

CASES: dict[str, Case] = {
    "RoundRobin": Case(RoundRobin(), fedavg.run),
}


def test_the_turns() -> None:
    trainer = train(RoundRobin(), rounds=4, local_steps=1)
    turns = [[client.id for client in round] for round in trainer.recorded]
    assert turns == [[0, 1, 2, 3, 4], [5, 6, 7, 0, 1], [2, 3, 4, 5, 6], [7, 0, 1, 2, 3]]


def test_a_client_that_drops_out_has_had_its_turn() -> None:
    trainer = train(RoundRobin(), ClientDropout(probability=0.5), rounds=4, local_steps=1)
    assert 0 < sum(map(len, trainer.recorded)) < 20
    assert int(trainer.servers["RoundRobin"]["next"]) == 4
