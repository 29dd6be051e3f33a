"""ClientDropout makes clients drop out of a round."""

import pytest
from contracts.case import Case, Refusals
from harness import classifier, distance, train
from reference import fedavg

from flcog.callbacks import ClientDropout

pytestmark = pytest.mark.filterwarnings("error")


CASES: dict[str, Case] = {
    "ClientDropout": Case(ClientDropout(probability=0.4), fedavg.run, neutral=ClientDropout(probability=0.0), random=True),
}


REFUSED: Refusals = {
    ClientDropout: [
        ({"probability": 1.0}, "probability must lie in [0, 1); got 1.0"),
    ],
}


@pytest.mark.slow
def test_clients_drop_out_at_the_rate_asked_for() -> None:
    trainer = train(ClientDropout(probability=0.3), clients_per_round=8, rounds=50, local_steps=1)
    share = sum(map(len, trainer.recorded)) / 400
    assert abs(share - 0.7) < 3 * (0.3 * 0.7 / 400) ** 0.5
    with pytest.warns(UserWarning, match="round 1: every sampled client dropped out"):
        nobody = train(ClientDropout(probability=1 - 1e-9), rounds=1)
    assert distance(nobody.params, {name: value.detach().double() for name, value in classifier().named_parameters()}) == 0
