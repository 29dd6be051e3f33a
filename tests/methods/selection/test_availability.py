"""Clients that are not always available."""

import csv
import itertools
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from contracts.case import Case
from harness import train
from reference import fedavg

from flcog.callbacks import (
    Availability,
    DiurnalAvailability,
    Oort,
    PoissonSampling,
    PowerOfChoice,
    RoundRobin,
    UniformSelection,
    WeightedSelection,
)
from flcog.core.randomness import fold
from flcog.method import ClientPool, Selection

pytestmark = pytest.mark.filterwarnings("error")

TRACE = str(Path(__file__).parent / "trace.csv")
CASES: dict[str, Case] = {
    "Availability": Case(Availability(trace=TRACE), fedavg.run, neutral=Availability(), random=True),
    "DiurnalAvailability": Case(
        DiurnalAvailability(hours=12, spread=6, seconds_per_round=7200),
        fedavg.run,
        neutral=DiurnalAvailability(hours=24),
        random=True,
    ),
}


def in_trace(moment: float, period: float = 1800) -> set[int]:
    with open(TRACE) as file:
        rows = list(csv.DictReader(file))
    return {int(row["client"]) for row in rows if float(row["from"]) <= moment % period < float(row["until"])}


@pytest.mark.parametrize("period", [None, 1000.0])
def test_the_trace_decides_and_is_repeated(period: float | None) -> None:
    model = Availability(trace=TRACE, seconds_per_round=137.0, period=period)
    for round in range(40):
        present = model.available(np.arange(8), 137.0 * round, seed=0)
        assert set(np.flatnonzero(present).tolist()) == in_trace(137.0 * round, period or 1800)


def test_a_trace_of_seconds_since_1970_is_read_to_the_second(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("client,from,until\n0,1600000000,1600000060\n1,1600000100,1600000400\n")
    model = Availability(trace=str(trace))
    present = [model.available(np.arange(2), 1_600_000_000 + after, seed=0).tolist() for after in (0, 59, 60, 99, 100, 399)]
    assert present == [[True, False], [True, False], [False, False], [False, False], [False, True], [False, True]]


SELECTIONS = [None, PoissonSampling(rate=0.7), RoundRobin(), UniformSelection(), WeightedSelection(), PowerOfChoice(), Oort()]


@pytest.mark.parametrize("method", SELECTIONS, ids=repr)
def test_every_selection_takes_available_clients_alone(method: Selection | None) -> None:
    methods = [Availability(trace=TRACE, seconds_per_round=300)] + ([method] if method else [])
    trainer = train(*methods, rounds=8, clients_per_round=2, local_steps=1)
    rounds = iter(trainer.recorded)
    for number, row in enumerate(trainer.rows):
        clients = {client.id for client in next(rounds)} if row["clients/participating"] else set()
        assert clients <= in_trace(300 * number)
        assert method == PoissonSampling(rate=0.7) or len(clients) == min(2, len(in_trace(300 * number)))


@pytest.mark.slow
def test_uniform_draws_among_the_available_clients() -> None:
    present, counts = {1, 4, 6, 7}, dict.fromkeys(itertools.combinations((1, 4, 6, 7), 2), 0.0)
    for round in range(4000):
        sizes, key = torch.ones(9, dtype=torch.int64), fold(0, round, "cohort")
        pool = ClientPool(round, sizes, 9, key, availability=lambda clients: np.isin(clients, list(present)))
        counts[tuple(pool.draw(2))] += 1
        assert pool.draw(9) == sorted(present)
    assert all(abs(count / 4000 - 1 / 6) < 4 * (1 / 6 / 4000) ** 0.5 for count in counts.values())


def test_few_available_clients_are_found() -> None:
    sizes = torch.ones(5000, dtype=torch.int64)
    pool = ClientPool(0, sizes, 5000, 1, lambda clients: clients >= 4997, partial(np.cumsum, sizes.numpy()))
    assert pool.draw(5) == pool.draw_by_size(5) == [4997, 4998, 4999]
    nobody = ClientPool(0, sizes, 5000, 1, lambda clients: np.zeros(len(clients), bool), partial(np.cumsum, sizes.numpy()))
    assert nobody.draw(5) == nobody.draw_by_size(5) == []


@pytest.mark.parametrize("method", SELECTIONS, ids=repr)
def test_a_round_without_available_clients_is_empty(method: Selection | None, tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("client,from,until\n" + "".join(f"{client},0,100\n" for client in range(8)))
    methods = [Availability(trace=str(trace), seconds_per_round=150, period=300)] + ([method] if method else [])
    trainer = train(*methods, rounds=3, local_steps=1)
    assert [row["clients/participating"] > 0 for row in trainer.rows] == [True, False, True]


def test_a_client_is_available_for_its_hours_of_each_day() -> None:
    model, clients = DiurnalAvailability(hours=6, night=3, spread=2, seconds_per_round=900), np.arange(2000)
    day = np.stack([model.available(clients, 900 * round, seed=5) for round in range(96)])
    assert set(day.sum(0)) <= {23, 24, 25}
    assert np.array_equal(model.available(clients, 900 * 96, 5), day[0]) and np.array_equal(
        model.available(clients[7:9], 900 * 5, 5), day[5, 7:9]
    )
    share = day.mean(1)
    assert abs(share[12] - 0.866) < 0.03, "at 3 o'clock the share is that of a normal variable within 1.5 standard deviations"
    assert share[60] < 0.01
    assert not np.array_equal(model.available(clients, 0, seed=6), day[0])


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("client;from;until\n0;0;1\n", "must begin with the header client,from,until; got 'client;from;until'"),
        ("client,from,until\n0,0,5\n2,0,5\n", "must have an interval of each of the 8 clients, and of no other client"),
    ],
)
def test_bad_traces_are_refused_in_a_line(text: str, complaint: str, tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text(text)
    with pytest.raises(ValueError) as caught:
        train(Availability(trace=str(trace)), rounds=1)
    assert complaint in str(caught.value) and str(trace) in str(caught.value) and "\n" not in str(caught.value)
