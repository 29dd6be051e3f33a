"""A run tries in its own rounds whether one client at a time is as fast as threads. The numbers are equal to the bit."""

import threading
from typing import Any

import pytest
import torch
from harness import assert_close, train

import flcog
from engine.test_executor_choice import Pictures
from flcog.execute.one_client import OneClient
from flcog.execute.pace import Pace


@pytest.mark.parametrize(
    ("seconds", "work", "turns", "settled"),
    [
        ([9, 0.10, 0.10, 0.11, 0.12], 0.2, [4, 4, 1, 4, 1], 1),
        ([9, 0.10, 0.12, 0.11, 0.12], 0.2, [4, 4, 1, 4, 1], 4),
        ([9, 0.09, 0.30, 0.30, 0.08], 0.2, [4, 4, 1, 4, 1], 1),  # one slow round of either kind does not count
        ([9, 0.10], 0.31, [4, 4], 4),  # 3.1 ms per step, too long for threads to wait for Python's lock
    ],
)
def test_what_rounds_show(seconds: list[float], work: float, turns: list[int], settled: int) -> None:
    pace, taken = Pace(4), []
    for time in seconds:
        assert pace.settled is None
        taken.append(pace.at_once)
        pace.took(time, work, steps=100)
    assert taken == turns and pace.settled == pace.at_once == settled
    pace.took(0, work, steps=100)
    assert pace.settled == settled


@pytest.mark.parametrize("one_is_faster", [True, False])
@pytest.mark.slow
def test_the_numbers_stay(one_is_faster: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(2)  # conftest resets it
    running, most, seen, counting = 0, 0, list[int](), threading.Lock()
    client, took = OneClient._client, Pace.took

    def counted(*arguments: Any) -> Any:
        nonlocal running, most
        with counting:
            running += 1
            most = max(most, running)
        try:
            return client(*arguments)
        finally:
            with counting:
                running -= 1

    def noted(pace: Pace, seconds: float, work: float, steps: int) -> None:
        nonlocal most
        assert seconds > 0 and work > 0 and steps == 4 * 2
        seen.append(most)
        most = 0
        took(pace, float((pace.at_once == 1) != one_is_faster), 0, steps)

    monkeypatch.setattr(OneClient, "_client", counted)
    monkeypatch.setattr(Pace, "took", noted)
    work: dict[str, Any] = {"rounds": 7, "local_steps": 2, "clients_per_round": 4, "precision": "32-true"}
    tried, plain = (
        train(module=network(), data=Pictures(num_clients=4), **work, **options) for options in ({}, {"chunk_size": 2})
    )
    last = 1 if one_is_faster else 2
    assert all(number <= limit for number, limit in zip(seen, [2, 2, 1, 2, 1, last, last], strict=True))
    assert (tried.executor.clients_at_once, plain.executor.clients_at_once) == (last, 2)
    assert_close(tried.state, plain.state, 0)
    assert tried.rows == plain.rows


def network() -> Any:
    torch.manual_seed(0)
    return flcog.Classifier(flcog.models.SimpleCNN(1))
