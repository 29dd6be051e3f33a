"""Methods that select the clients of a round: cohorts of any size under every executor, and unbiased weights."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from harness import (
    assert_close,
    classifier,
    distance,
    fit,
    make_trainer,
    train,
)

import flcog
from flcog.callbacks import (
    SCAFFOLD,
    BandedNoise,
    DPFedAvg,
    EqualWeights,
    FedAdam,
    FedAvgM,
    FedDisco,
    FedDyn,
    PoissonSampling,
    RoundRobin,
)
from flcog.method import ClientPool, Method, Participants, SamplingLaw, Selection, Slot

pytestmark = pytest.mark.filterwarnings("error")

COHORTS = ([4, 1], [], [0, 2, 3, 5, 6, 7], [3], [], [1, 6, 2])


@dataclass(frozen=True)
class Listed(Selection):
    """Selects the clients of ``COHORTS`` round by round, or the given clients in every round."""

    given: tuple[int, ...] | None = None
    weights_of_all: tuple[float, ...] | None = None

    def select(self, state: Slot, population: ClientPool, count: int, rng: torch.Generator) -> Participants:
        clients = COHORTS[population.round] if self.given is None else self.given
        if self.weights_of_all is None:
            return Participants(clients)
        return Participants(
            clients, weights=torch.tensor([self.weights_of_all[client] for client in clients], dtype=torch.float64)
        )


METHODS: dict[str, Sequence[Method]] = {
    "fedavg": (),
    "scaffold": (SCAFFOLD(),),
    "server": (FedAvgM(beta=0.5), FedAdam()),
    "disco": (FedDisco(), FedDyn(alpha=0.1)),
}
each = pytest.mark.parametrize("methods", METHODS.values(), ids=METHODS.keys())


@each
def test_cohorts_of_any_size_are_the_same_under_every_executor(methods: Sequence[Method]) -> None:
    loop = train(Listed(), *methods, rounds=6)
    assert [[client.id for client in round] for round in loop.recorded] == [cohort for cohort in COHORTS if cohort]
    assert [row["clients/participating"] for row in loop.rows] == [len(cohort) for cohort in COHORTS]
    threads = train(Listed(), *methods, rounds=6, chunk_size=2)
    assert threads.rows == loop.rows and distance(threads.state, loop.state) == 0
    for chunk_size in (None, 2):
        vmap = train(Listed(), *methods, rounds=6, executor="vmap", chunk_size=chunk_size)
        assert_close(vmap.state, loop.state, 1e-11)
        assert vmap.rows == [pytest.approx(row, rel=1e-9) for row in loop.rows]


def test_an_empty_round_writes_a_row_and_keeps_the_model(tmp_path: Path) -> None:
    trainer = fit(tmp_path, Listed(given=()), FedAvgM(), rounds=2, eval_every=1)
    assert distance(trainer.params, {name: value.detach().double() for name, value in classifier().named_parameters()}) == 0
    assert [row["clients/participating"] for row in trainer.rows] == [0, 0]
    assert all(row["comm/total_bytes"] == 0 and row["test/loss"] > 0 for row in trainer.rows)


@pytest.mark.parametrize(("done", "executor"), [(1, "loop"), (2, "loop"), (5, "loop")])
def test_resume_is_bitwise_around_empty_rounds(done: int, executor: str, tmp_path: Path) -> None:
    setting = partial(fit, tmp_path, Listed(), SCAFFOLD(), executor=executor)
    half = setting(rounds=done)
    resumed = setting(rounds=6, ckpt_path=str(half.run_dir))
    if executor == "loop":
        assert distance(resumed.state, setting(rounds=6).state) == 0
    assert [row["clients/participating"] for row in resumed.rows] == [len(cohort) for cohort in COHORTS]


class Fixed(Selection):
    """Selects two clients, whether they are available or not, as if it drew them from all."""

    def select(self, state: Slot, population: ClientPool, count: int, rng: torch.Generator) -> Participants:
        return Participants([3, 5])

    def law(self, count: int, num_clients: int) -> SamplingLaw:
        return SamplingLaw(count / num_clients, fixed_size=True)


def test_a_selection_of_clients_that_are_not_available_is_refused() -> None:
    """BandedNoise assumes that clients pause between their rounds. Without these pauses, its epsilon would be too small."""
    with pytest.raises(ValueError, match=r"Fixed\.select must return clients for which population.available is true"):
        train(Fixed(), DPFedAvg(noise_multiplier=0.0, noise=BandedNoise(2), repeatable=True), clients_per_round=2, rounds=2)


def test_unbiased_weights_exclude_other_weights() -> None:
    train(PoissonSampling(), EqualWeights(), rounds=1)
    with pytest.raises(ValueError, match="unbiased weights replace those of EqualWeights, unless unbiased is false"):
        make_trainer(None, PoissonSampling(unbiased=True), EqualWeights(), rounds=1)
    train(PoissonSampling(unbiased=True, stop_round=1), EqualWeights(start_round=1), rounds=2)


def test_weights_count_as_they_are_returned() -> None:
    """A client with twice the weight moves the model twice as far. Weights that sum to 1 give the same result as FedAvg."""
    start = train(Listed(given=()), rounds=1).params
    once, twice = (train(Listed(given=(3,), weights_of_all=(w,) * 8), rounds=1).params for w in (0.5, 1.0))
    plain = train(Listed(given=(3,)), rounds=1).params
    for name, value in start.items():
        torch.testing.assert_close(twice[name], plain[name], rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(plain[name] - value, 2 * (once[name] - value), rtol=1e-9, atol=1e-12)


def test_two_selections_are_refused() -> None:
    options: dict[str, Any] = {"rounds": 1, "local_steps": 1, "logger": False}
    with pytest.raises(ValueError, match="RoundRobin and Listed both select the clients of a round: keep one of them"):
        flcog.FederatedTrainer(callbacks=[RoundRobin(), Listed()], **options)
