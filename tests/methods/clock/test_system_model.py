"""SystemModel's durations equal a computation by hand; speeds can come from a file, and runs have columns of time."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from contracts.case import Case
from harness import RAGGED, distance, fit, train
from reference import fedavg

from flcog.callbacks import SCAFFOLD, Availability, Deadline, OverSelect, PowerOfChoice, SystemModel, TopK
from flcog.method import Method, Work

CASES: dict[str, Case] = {"SystemModel": Case(SystemModel(spread="log-normal"), fedavg.run, like_fedavg=True)}
PER_CLIENT = {"spread": "half-normal", "seconds_per_step": 0.5, "download": 1000.0, "upload": 500.0}


def unit(count: int, field: str) -> Work:
    """One step, or one byte, of work for each of ``count`` clients; ``field`` chooses between them."""
    zeros = Work(np.arange(count), *(np.zeros(count) for _ in range(3)))
    return zeros._replace(**{field: np.ones(count)})


def durations(model: SystemModel, steps: list[int], clients: list[int], down: float, up: float) -> np.ndarray:
    """The terms in SystemModel's docstring, computed from each client's seconds per step and per byte."""
    per = {field: model.seconds(unit(8, field), 0)[clients] for field in ("steps", "down", "up")}
    found: np.ndarray = np.array(steps) * per["steps"] + down * per["down"] + up * per["up"]
    return found


def test_the_columns_are_those_of_the_ledgers_bytes() -> None:
    model = SystemModel(**PER_CLIENT)
    trainer, total = train(model, SCAFFOLD(), TopK(fraction=0.5), **RAGGED), 0.0
    for row, works in zip(trainer.rows, trainer.works, strict=True):
        clients = sorted(work.client for work in works)
        steps = [next(work.num_steps for work in works if work.client == client) for client in clients]
        times = durations(model, steps, clients, row["comm/down_bytes"] / 5, row["comm/up_bytes"] / 5)
        total += times.max()
        assert row["time/simulated"] == pytest.approx(total, rel=1e-12)
        assert row["time/waiting"] == pytest.approx((times.max() - times).mean(), rel=1e-9)
        assert row["time/idle_share"] == pytest.approx((times.max() - times).mean() / times.max(), rel=1e-9)
    plain = train(SCAFFOLD(), TopK(fraction=0.5), **RAGGED)
    assert distance(plain.state, trainer.state) == 0 and "time/simulated" not in plain.rows[0]


def test_candidates_download_and_report_before_the_round() -> None:
    model = SystemModel(seconds_per_step=3.0, download=1000.0, upload=500.0)
    plain, chosen = (train(model, *more, rounds=1, clients_per_round=3) for more in ([], [PowerOfChoice(candidates=8)]))
    size = plain.ledger.total_down / 3
    largest = max(-(-len(plain.federation.partition.client(client)) // 4) for client in range(8))
    asking = size / 1000 + largest * 3 / 3 + 4 / 500
    expected = plain.rows[0]["time/simulated"] - size / 1000 + asking
    assert chosen.rows[0]["time/simulated"] == pytest.approx(expected, rel=1e-12), "those that train have the model already"


@pytest.mark.parametrize(("spread", "median", "mean"), [("log-normal", 1.0, np.exp(0.125)), ("half-normal", 0.6745, 0.7979)])
def test_the_spread_of_speeds(spread: Any, median: float, mean: float) -> None:
    model = SystemModel(seconds_per_step=1.0, download=1.0, spread=spread, sigma=0.5)
    steps, down = (model.seconds(unit(100_000, field), seed=3) for field in ("steps", "down"))
    assert np.median(steps) == pytest.approx(median, rel=0.02) and steps.mean() == pytest.approx(mean, rel=0.02)
    assert abs(np.corrcoef(steps, down)[0, 1]) < 0.02 and (steps > 0).all()
    some = unit(3, "steps")._replace(clients=np.array([7, 70_000, 2]))
    assert model.seconds(some, seed=3).tolist() == steps[[7, 70_000, 2]].tolist(), "a client's speed is its own"
    assert model.seconds(some, seed=4).tolist() != steps[[7, 70_000, 2]].tolist()


def test_speeds_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "speeds.csv"
    file.write_text("client,seconds_per_step,download,upload\n1,2,100,50\n0,1,200,25\n")
    model = SystemModel(clients=str(file))
    work = Work(np.array([1, 0]), np.array([3.0, 3.0]), np.array([400.0, 400.0]), np.array([100.0, 100.0]))
    assert model.seconds(work, 0).tolist() == [6 + 4 + 2, 3 + 2 + 4]
    assert model.check_clients(2) is None
    with pytest.raises(ValueError, match="must have one row for each of the 3 clients"):
        model.check_clients(3)


def test_availability_follows_the_clock(tmp_path: Path) -> None:
    """Client k is available from second 10 k + 5, and a round takes 4 seconds, or 10 without a client."""
    trace = tmp_path / "trace.csv"
    trace.write_text("client,from,until\n" + "".join(f"{client},{10 * client + 5},1000\n" for client in range(8)))
    clock = SystemModel(seconds_per_step=1, download=None, upload=None)
    trainer = train(clock, Availability(trace=str(trace), seconds_per_round=10), rounds=5)
    assert [row["time/simulated"] for row in trainer.rows] == [10, 14, 18, 22, 26]
    assert [sorted(client.id for client in round) for round in trainer.recorded] == [[0], [0], [0, 1], [0, 1]]


METHODS: list[Method] = [SystemModel(**PER_CLIENT), Deadline(seconds=5.0), OverSelect(factor=1.3), SCAFFOLD()]


@pytest.mark.parametrize("executor", ["loop", "vmap"])
@pytest.mark.slow
def test_resume_is_bitwise(executor: str, tmp_path: Path) -> None:
    setting = partial(fit, tmp_path, *METHODS, executor=executor, **RAGGED)
    whole, half = setting(rounds=4), setting(rounds=2)
    resumed = setting(rounds=4, ckpt_path=str(half.run_dir))
    assert distance(resumed.state, whole.state) == 0
    assert [row["time/simulated"] for row in resumed.rows] == [row["time/simulated"] for row in whole.rows]
    assert sum(row["clients/late"] for row in whole.rows) > 0
