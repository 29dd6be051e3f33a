"""Selecting some of a million clients takes memory and work only for these. ``flcog bench -c speed/million-clients`` times it."""

import tracemalloc
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from harness import make_trainer
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import flcog
from flcog.callbacks import (
    DiurnalAvailability,
    FedBuff,
    OverSelect,
    PoissonSampling,
    SystemModel,
)
from flcog.core.randomness import make_rng
from flcog.datamodules import RandomData
from flcog.method import ClientPool, Method, Selection

MILLION = 10**6
DIURNAL = DiurnalAvailability(hours=12, spread=8)


def selected_of(method: Selection, num_clients: int) -> tuple[int, int, int]:
    """The number of selected clients, the peak memory of the selection in bytes, and how many clients' availability was checked."""
    sizes, asked = torch.ones(num_clients, dtype=torch.int64), 0
    ends = np.cumsum(sizes.numpy())

    def available(clients: np.ndarray) -> np.ndarray:
        nonlocal asked
        asked += len(clients)
        return DIURNAL.available(clients, 0, 0)

    pool = ClientPool(0, sizes, num_clients, 5, available, lambda: ends, lambda clients: [0.0] * len(clients))
    state = method.init_selection(num_clients)
    tracemalloc.start()
    clients = method.select(state, pool, 100, make_rng(1)).clients
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return len(clients), peak, asked


@pytest.mark.parametrize("unbiased", [False, True])
def test_poisson_sampling_with_availability(unbiased: bool) -> None:
    (few, small, _), (many, large, asked) = (
        selected_of(PoissonSampling(rate=200 / number, unbiased=unbiased), number) for number in (MILLION // 100, MILLION)
    )
    assert 60 < few < 200 and 60 < many < 200
    assert large < 1.5 * small < 150_000 and asked < 300


@pytest.mark.slow
@pytest.mark.parametrize(
    "methods",
    [
        [PoissonSampling()],
        [PoissonSampling(), SystemModel(spread="log-normal"), OverSelect()],
        [SystemModel(spread="half-normal"), FedBuff(buffer=5)],
        [SystemModel(spread="half-normal"), FedBuff(buffer=5, arrival_rate=20.0)],
    ],
    ids=["plain", "clock", "asynchronous", "at a rate"],
)
def test_a_round_of_a_million_clients(methods: list[Method]) -> None:
    peaks = []
    for number in (MILLION // 100, MILLION):
        options: dict[str, Any] = {"precision": "32-true", "local_steps": 1, "clients_per_round": 20}
        trainer = make_trainer(None, DIURNAL, *methods, **options)
        data = RandomData(shape=[2], num_samples=number, num_test_samples=0, num_clients=number, batch_size=1)
        trainer.prepare(flcog.Classifier(torch.nn.Linear(2, 10), partial(torch.optim.SGD, lr=0.1)), data)
        trainer.train_round()
        tracemalloc.start()
        trainer.train_round()
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        with _NothingLarge(number):
            trainer.train_round()
    assert peaks[1] < 2 * peaks[0] < 10**6


class _NothingLarge(TorchDispatchMode):
    """Checks that no operator computes a tensor of all clients. Reading single clients from such a tensor is allowed."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        assert all(leaf.numel() < self.number / 2 for leaf in tree_leaves(found) if isinstance(leaf, torch.Tensor)), func
        return found
