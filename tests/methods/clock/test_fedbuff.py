"""FedBuff agrees with a simulation of its events, and with FedAvg and asynchronous SGD in special cases.

Further tests combine it with other methods, and resume runs with clients in flight.
"""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from contracts.case import Case
from contracts.test_quadratics import EQUAL, SIZES, A, B, Numbers, Quadratic, local_map, optimum
from harness import (
    NUM_CLASSES,
    NUM_FEATURES,
    RAGGED,
    BatchNormMLP,
    TinyData,
    classifier,
    distance,
    fit,
    train,
)
from reference import fedbuff

from flcog.callbacks import (
    SCAFFOLD,
    Availability,
    ClientDropout,
    EncodedBroadcast,
    EqualWeights,
    FedAvgM,
    FedBuff,
    FedNova,
    FedProx,
    FedRep,
    RoundRobin,
    SystemModel,
    TopK,
)
from flcog.method import Method
from flcog.server.flights import first_start
from methods.server_steps import gap_to_clients

CASES: dict[str, Case] = {
    "FedBuff": Case(
        FedBuff(buffer=2, momentum=0.3),
        None,
        options=RAGGED,
        random=True,
        no_reference="clients arrive in later rounds; a simulation of the events is compared below",
    ),
    "FedBuff at a rate": Case(
        FedBuff(concurrency=4, buffer=2, arrival_rate=0.5),
        None,
        options=RAGGED,
        random=True,
        no_reference="clients arrive in later rounds; a simulation of the events is compared below",
    ),
}
LR = 0.05
START = np.array([1.0, -0.5, 0.25])
GRADIENTS = np.einsum("kij,kj->ki", A, START - B)
"""The gradients of the three clients' quadratic losses at ``START``."""
HALF_NORMAL = SystemModel(seconds_per_step=0.5, download=1000.0, upload=500.0, spread="half-normal")


def maps(lr: float = LR) -> list[fedbuff.LocalMap]:
    """The maps from a received model to the clients' models after one pass over their 2, 4 and 10 samples."""
    pairs = [local_map(k, size, lr) for k, size in enumerate(SIZES)]
    return [lambda x, p=p, q=q: p @ x + q for p, q in pairs]  # type: ignore[misc]


def on_quadratics(*methods: Method, rounds: int = 12, lr: float = LR, start: Any = None, **options: Any) -> Any:
    module = Quadratic(lr)
    if start is not None:
        module.model.w.data = torch.tensor(start)
    return train(*methods, module=module, data=Numbers(), local_epochs=1, clients_per_round=1.0, rounds=rounds, **options)


def model(trainer: Any) -> np.ndarray:
    found: np.ndarray = trainer.run.params["model.w"].numpy()
    return found


@pytest.mark.parametrize("rate", [None, 0.4])
@pytest.mark.parametrize("buffer", [1, 2])
def test_it_is_a_simulation_of_the_events(buffer: int, rate: float | None) -> None:
    method = FedBuff(concurrency=3, buffer=buffer, staleness=0.7, server_lr=0.8, momentum=0.4, arrival_rate=rate)
    trainer = on_quadratics(method, RoundRobin())
    expected = fedbuff.Server(np.zeros(3), maps(), SIZES, 0.7, 0.8, 0.4)
    if rate is None:
        fedbuff.filled_after_steps(expected, 3, buffer, 12)
    else:
        fedbuff.filled_at_a_rate(expected, 3, buffer, 12, rate)
    np.testing.assert_allclose(model(trainer), expected.model, rtol=1e-12)
    assert [row["time/simulated"] for row in trainer.rows] == pytest.approx(expected.ends, rel=1e-12)
    assert [row["staleness/mean"] for row in trainer.rows] == [np.mean(each) for each in expected.staleness]
    assert max(row["staleness/max"] for row in trainer.rows) == max(map(max, expected.staleness)) >= 2
    assert trainer.rows[-1]["clients/in_flight"] == len(expected.events)


@pytest.mark.parametrize("executor", ["loop", "vmap"])
def test_without_clients_in_flight_it_is_fedavg(executor: str) -> None:
    """Not only the model is equal, but also BatchNorm's statistics, SCAFFOLD's state, the bytes and the time."""
    one, other = (
        train(HALF_NORMAL, SCAFFOLD(), method, module=classifier(network=BatchNormMLP), executor=executor, rounds=2, **RAGGED)
        for method in (FedBuff(buffer=5), EqualWeights())
    )
    assert distance(one.state, other.state) < 1e-12
    assert distance(one.servers["SCAFFOLD"]["c"], other.servers["SCAFFOLD"]["c"]) < 1e-12
    for a, b in zip(one.rows, other.rows, strict=True):
        assert {name: a[name] for name in b} == {name: pytest.approx(value, rel=1e-9) for name, value in b.items()}


class Flagged(torch.nn.Linear):
    """A linear network with a buffer that is 1 after any training."""

    def __init__(self) -> None:
        super().__init__(NUM_FEATURES, NUM_CLASSES)
        self.register_buffer("trained", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.trained.fill_(1.0)
        return super().forward(x)


@pytest.mark.parametrize("executor", ["loop", "vmap"])
def test_buffers_are_the_mean_of_the_arrivals_buffers(executor: str) -> None:
    """All clients of the first rounds began with a buffer of 0. The sum of their changes would be the number of rounds."""
    method = FedBuff(concurrency=6, buffer=1)
    trainer = train(HALF_NORMAL, method, module=classifier(network=Flagged), executor=executor, rounds=4, **RAGGED)
    assert trainer.run.buffers["model.trained"] == 1


def test_one_client_at_a_time_is_sgd() -> None:
    """With a buffer of 1 and one client in flight, each step of the server sets the model to the client's model."""
    trainer = on_quadratics(FedBuff(concurrency=1, buffer=1, staleness=3.0), RoundRobin(), rounds=7)
    x = np.zeros(3)
    for number in range(7):
        x = maps()[number % 3](x)
    np.testing.assert_allclose(model(trainer), x, rtol=1e-12)


def drift(*methods: Method, rounds: int) -> np.ndarray:
    """The model's change divided by the learning rate, after rounds whose steps are so tiny that gradients hardly change."""
    return (model(on_quadratics(*methods, lr=1e-6, rounds=rounds, start=START)) - START) / 1e-6


def test_clients_count_by_the_steps_that_they_take_in_a_second() -> None:
    """In 20 seconds the clients arrive 10, 5 and 2 times with 2, 4 and 10 steps: each gradient counts 20 times."""
    alone = FedBuff(concurrency=3, buffer=1, staleness=0.0)
    np.testing.assert_allclose(drift(alone, rounds=17), -20 * GRADIENTS.sum(0), rtol=1e-4)
    together = FedBuff(concurrency=3, buffer=3, staleness=0.0)  # each client once, as in FedAvg with equal weights
    np.testing.assert_allclose(drift(together, rounds=1), -np.array(SIZES) @ GRADIENTS / 3, rtol=1e-4)
    same_time = SystemModel(seconds_per_step=0.0, download=1.0, upload=None)  # each client arrives once in three rounds
    np.testing.assert_allclose(drift(alone, same_time, rounds=3), -np.array(SIZES) @ GRADIENTS, rtol=1e-4)


def test_fednova_compares_the_clients_of_a_buffer_alone() -> None:
    """FedNova's factor is the mean number of steps of a round's clients, so it cancels in a round of one client."""
    alone, together = (FedBuff(concurrency=3, buffer=buffer, staleness=0.0) for buffer in (1, 3))
    np.testing.assert_allclose(drift(alone, FedNova(), rounds=17), -20 * GRADIENTS.sum(0), rtol=1e-4)
    np.testing.assert_allclose(drift(together, FedNova(), rounds=1), -np.mean(SIZES) * GRADIENTS.mean(0), rtol=1e-4)


def test_scaffold_reaches_the_true_optimum() -> None:
    """SCAFFOLD's option II compares a client's model with the model that it received, and c stays the mean of all c_k."""
    method = FedBuff(concurrency=3, buffer=2)
    own, plain = (model(on_quadratics(method, *more, lr=0.1, rounds=25)) for more in ([SCAFFOLD()], []))
    assert np.linalg.norm(own - optimum(EQUAL)) < 3e-3 < 0.05 < np.linalg.norm(plain - optimum(EQUAL))
    early = train(FedBuff(concurrency=6, buffer=2), SCAFFOLD(), rounds=5, **RAGGED)
    assert len(early.run.clients.by_client) < 8
    assert all(value.abs().max() < 1e-12 for value in gap_to_clients(early, "SCAFFOLD", "c", "c").values())


def test_momentum_is_that_of_fedavgm() -> None:
    ends = [train(*methods, rounds=4, **RAGGED).state for methods in (
        (FedBuff(buffer=2, momentum=0.5, server_lr=0.7),), (FedBuff(buffer=2), FedAvgM(beta=0.5, lr=0.7)))]  # fmt: skip
    assert distance(*ends) < 1e-12


@pytest.mark.parametrize(
    "methods", [(FedRep(),), (TopK(fraction=0.5),), (EncodedBroadcast(codec=TopK(fraction=0.25)),)], ids=repr
)
def test_bytes_take_time_and_count_where_they_flow(methods: tuple[Method, ...]) -> None:
    """Downloads count when a client starts, and uploads when it arrives. To measure its upload, a client trains only once."""
    up = SystemModel(seconds_per_step=0.0, download=None, upload=1.0)
    rows = train(up, *methods, FedBuff(buffer=3), local_steps=1, rounds=4).rows
    sizes = [row["comm/up_bytes"] / 3 for row in rows]
    # Two clients from earlier rounds arrive first. The third arrival, which ends the round, started in this round.
    assert [row["time/simulated"] for row in rows] == [sizes[0], 2 * sizes[0], 3 * sizes[0], 4 * sizes[0]]
    assert len(set(sizes)) == 1 and all(row["clients/in_flight"] == 2 for row in rows)
    down = SystemModel(seconds_per_step=0.0, download=1.0, upload=None)
    rows = train(down, *methods, FedBuff(buffer=5), local_steps=1, clients_per_round=5, data=TinyData(order=(1, 1, 1, 1, 1))).rows
    ends = np.cumsum([row["comm/down_bytes"] / 5 for row in rows])
    assert [row["time/simulated"] for row in rows] == pytest.approx(ends.tolist(), rel=1e-12)


def test_clients_that_drop_out_leave_their_place_free() -> None:
    rows = train(FedBuff(concurrency=6, buffer=3), ClientDropout(probability=0.5), rounds=12, **RAGGED).rows
    assert min(row["clients/participating"] for row in rows) < 3 == max(row["clients/participating"] for row in rows)


def test_the_denominator_is_the_buffer_if_fewer_clients_arrive(tmp_path: Path) -> None:
    """Only client 1 is available in the first round, so its change counts by half."""
    trace = tmp_path / "trace.csv"
    trace.write_text("client,from,until\n0,900,1000\n1,0,1000\n2,900,1000\n")
    method = FedBuff(concurrency=3, buffer=2)
    trainer = on_quadratics(method, Availability(trace=str(trace), seconds_per_round=10), rounds=1, start=START)
    np.testing.assert_allclose(model(trainer), START + (maps()[1](START) - START) / 2, rtol=1e-12)


def test_methods_of_clients_alone_may_begin_later() -> None:
    plain, later = (train(FedBuff(buffer=2), FedProx(mu=1.0, start_round=start), rounds=4, **RAGGED) for start in (4, 2))
    assert distance(plain.state, later.state) > 0


def test_its_rounds_lie_between_synchronous_ones() -> None:
    """After its last round the server forgets the clients in flight."""
    method = FedBuff(buffer=2, start_round=1, stop_round=3)
    trainer = train(method, rounds=5, clients_per_round=7, **RAGGED)
    assert [row["clients/participating"] for row in trainer.rows] == [7, 2, 2, 7, 7]
    assert not trainer.run.server.traffic.flights and not trainer.run.server.traffic.broadcasts


@pytest.mark.parametrize("seconds", [0.0, 0.1, 1 / 3, 2.9999, 3.0, 7e5 + 1 / 7])
@pytest.mark.parametrize("rate", [0.1, 1 / 3, 3.0, 7.7])
def test_a_start_comes_neither_twice_nor_never(seconds: float, rate: float) -> None:
    number = first_start(seconds, rate)
    assert number / rate >= seconds and (number == 0 or (number - 1) / rate < seconds)
    assert first_start(number / rate, rate) == number


METHODS: list[Method] = [
    HALF_NORMAL,
    FedBuff(concurrency=6, buffer=2, momentum=0.5),
    SCAFFOLD(),
    TopK(fraction=0.5, error_feedback=True),
    EncodedBroadcast(codec=TopK(fraction=0.5)),
]


@pytest.mark.parametrize(
    ("executor", "rate"), [("loop", None), pytest.param("vmap", None, marks=pytest.mark.slow), ("loop", 2.0)]
)
@pytest.mark.slow
def test_resume_in_flight_is_bitwise(executor: str, rate: float | None, tmp_path: Path) -> None:
    methods = METHODS if rate is None else [HALF_NORMAL, replace(METHODS[1], arrival_rate=rate), SCAFFOLD()]
    setting = partial(fit, tmp_path, *methods, executor=executor, **RAGGED)
    whole, half = setting(rounds=5), setting(rounds=2)
    assert half.run.server.traffic.flights
    resumed = setting(rounds=5, ckpt_path=str(half.run_dir))
    assert distance(resumed.state, whole.state) == 0
    assert resumed.run.server.traffic.flights == whole.run.server.traffic.flights
    kept = ("time/simulated", "time/waiting", "staleness/mean", "clients/in_flight", "comm/total_bytes", "train/loss")
    assert [[row[name] for name in kept] for row in resumed.rows] == [[row[name] for name in kept] for row in whole.rows]
