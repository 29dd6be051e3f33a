"""Faults that were found in other frameworks do not occur here; many tests also show the numbers that the fault would give.

Most expected values were computed by hand: client k's loss is (w - t_k)^2, and its gradient is 2 (w - t_k).
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from harness import SIZES, BatchNormMLP, TinyData, classifier, make_trainer, train
from torch import Tensor, nn

import flcog
from flcog.callbacks import SCAFFOLD, FedNova
from flcog.core.processes import Processes
from flcog.data import Partition, Partitioner, Samples, Splits
from flcog.server.receive import share_out

pytestmark = pytest.mark.filterwarnings("error")

both_executors = pytest.mark.parametrize("executor", ["loop", "vmap"])


class Point(nn.Module):
    """A model with one parameter w."""

    def __init__(self, start: float) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor(start))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.w.expand(len(inputs), 1)


@dataclass(frozen=True)
class InOrder(Partitioner):
    """Client k owns the next ``sizes[k]`` samples."""

    sizes: tuple[int, ...]

    def __call__(self, samples: Samples, num_clients: int, seed: int) -> Partition:
        return Partition.from_clients(np.split(np.arange(len(samples)), np.cumsum(self.sizes)[:-1]))


class Constants(flcog.FederatedDataModule):
    """The input and the target of each of client k's samples are ``values[k]``."""

    task = "regression"
    num_classes = 2

    def __init__(self, values: Sequence[float], sizes: Sequence[int] | None = None, batch_size: int = 1) -> None:
        self.values, sizes = values, tuple(sizes or [1] * len(values))
        super().__init__(len(values), InOrder(sizes), batch_size)
        self.sizes = sizes

    def load(self) -> Splits:
        rows = torch.tensor(self.values).repeat_interleave(torch.tensor(self.sizes))
        return Splits(Samples(rows[:, None], rows))


def point(lr: float = 0.1, start: float = 2.0) -> flcog.Regressor:
    return flcog.Regressor(Point(start), optimizer=partial(torch.optim.SGD, lr=lr))


def run(*methods: Any, values: Sequence[float], sizes: Sequence[int] | None = None, **options: Any) -> float:
    """Train, and return the final w."""
    data = Constants(values, sizes, options.pop("batch_size", 1))
    options = {"rounds": 1, "clients_per_round": len(values)} | options
    return float(train(*methods, module=point(), data=data, **options).params["model.w"])


# SCAFFOLD ---------------------------------------------------------------------------------------------------------------------------


@both_executors
def test_scaffolds_correction_reaches_the_optimiser(executor: str) -> None:
    """p2pfl adds the correction to ``.grad`` in a hook whose changes Lightning discards, and omits ``- c`` in the new control variate."""
    data = Constants([0.0, 1.0])
    trainer = make_trainer(None, SCAFFOLD(), local_steps=1, clients_per_round=2, executor=executor)
    trainer.prepare(point(), data)
    trainer.run.server.servers["SCAFFOLD"]["c"]["model.w"].fill_(0.5)
    for client, value in ((0, 0.2), (1, 1.0)):
        trainer.run.clients.put(client, {"SCAFFOLD": {"c": {"model.w": torch.tensor(value, dtype=torch.float64)}}})
    trainer.train_round()
    # y_0 = 2 - 0.1 (4 - 0.2 + 0.5) = 1.57,  y_1 = 2 - 0.1 (2 - 1 + 0.5) = 1.85; without the correction, the mean would be 1.7.
    assert float(trainer.run.params["model.w"]) == pytest.approx((1.57 + 1.85) / 2, abs=1e-12)
    # c_0 = 0.2 - 0.5 + 0.43 / 0.1 and c_1 = 1 - 0.5 + 0.15 / 0.1: the gradients at w = 2. Without "- c", they would be 4.5 and 2.5.
    own = [float(trainer.run.clients.by_client[k]["SCAFFOLD"]["c"]["model.w"]) for k in (0, 1)]
    assert own == pytest.approx([4.0, 2.0], abs=1e-12)
    assert float(trainer.run.server.servers["SCAFFOLD"]["c"]["model.w"]) == pytest.approx(0.5 + (3.8 + 1.0) / 2, abs=1e-12)


def test_scaffold_corrects_parameters_not_statistics() -> None:
    """NIID-Bench corrects every entry of the ``state_dict``, including BatchNorm's statistics."""
    trainer = train(SCAFFOLD(), module=classifier(network=BatchNormMLP), rounds=1)
    assert trainer.run.buffers and set(trainer.run.server.servers["SCAFFOLD"]["c"]) == set(trainer.run.params)


# Buffers ----------------------------------------------------------------------------------------------------------------------------


@both_executors
def test_statistics_are_everybodys(executor: str) -> None:
    """PFLlib takes BatchNorm's statistics from the first client, and fluke takes the largest ``num_batches_tracked``."""
    values, sizes, steps = [1.0, 5.0, 3.0], [2, 4, 6], np.array([1, 2, 3])
    network = nn.Sequential(nn.BatchNorm1d(1), nn.Linear(1, 1))
    module = flcog.Regressor(network, optimizer=partial(torch.optim.SGD, lr=0.0))
    options: dict[str, Any] = {"local_epochs": 1, "clients_per_round": 3, "rounds": 1, "executor": executor}
    buffers = train(module=module, data=Constants(values, sizes, batch_size=2), **options).buffers
    shares = np.array(sizes) / sum(sizes)
    # s batches where every value is v move the running mean from 0 to v (1 - 0.9^s), and the variance from 1 to 0.9^s.
    means, variances = np.array(values) * (1 - 0.9**steps), 0.9**steps
    assert float(buffers["model.0.running_mean"]) == pytest.approx(shares @ means, abs=1e-12)
    assert float(buffers["model.0.running_var"]) == pytest.approx(shares @ variances, abs=1e-12)
    assert abs(shares @ means - means[0]) > 0.1
    assert int(buffers["model.0.num_batches_tracked"]) == round(shares @ steps) == 2 != max(steps)


# Weights ----------------------------------------------------------------------------------------------------------------------------


@both_executors
def test_clients_count_by_their_samples(executor: str) -> None:
    """FedLab's FedNova weighs clients by 1/m. ByteDance's looks weights up by client id, which fails if only some clients are selected."""
    values, sizes, lr = np.array([0.0, 1.0, -3.0]), np.array([2, 4, 6]), 0.1
    steps = np.array([1, 2, 3])
    moves = (values - 2) * (1 - (1 - 2 * lr) ** steps)
    for seed in range(3):
        trainer = make_trainer(None, FedNova(), local_epochs=1, clients_per_round=2, executor=executor, seed=seed)
        trainer.prepare(point(lr), Constants(values.tolist(), sizes.tolist(), batch_size=2))
        cohort = np.array(trainer.sample(0))
        trainer.train_round()
        shares = sizes[cohort] / sizes[cohort].sum()
        expected = 2 + (shares @ steps[cohort]) * (shares @ (moves[cohort] / steps[cohort]))
        assert float(trainer.run.params["model.w"]) == pytest.approx(expected, abs=1e-12)
        plain = 2 + steps[cohort].mean() * (moves[cohort] / steps[cohort]).mean()
        assert abs(plain - expected) > 1e-2
    average = run(values=values.tolist(), sizes=sizes.tolist(), batch_size=2, local_steps=1, executor=executor)
    assert average == pytest.approx(2 + sizes @ (values - 2) * 0.2 / 12, abs=1e-12)


# Clients --------------------------------------------------------------------------------------------------------------------------


def test_nobody_is_sampled_twice() -> None:
    """pfl's "random" user sampler draws with replacement."""
    trainer = make_trainer(None, local_steps=1, clients_per_round=5)
    trainer.prepare(classifier(), TinyData())
    cohorts = [trainer.sample(round) for round in range(200)]
    assert all(len(set(cohort)) == 5 for cohort in cohorts)
    times = np.bincount(np.concatenate(cohorts), minlength=8)
    assert abs(times - 125).max() < 5 * (200 * 5 / 8 * 3 / 8) ** 0.5
    trainer = make_trainer(None, local_steps=1, clients_per_round=1.0)
    trainer.prepare(classifier(), TinyData())
    assert sorted(trainer.sample(0)) == list(range(8))


def test_a_clients_state_stays_with_one_process() -> None:
    """pfl's in-memory user states are wrong with several processes, because each process keeps its own state of every user."""
    trainer = make_trainer(None, SCAFFOLD(), local_steps=1, clients_per_round=5)
    trainer.prepare(classifier(), TinyData())
    engine = dataclasses.replace(trainer.run.engine, processes=Processes(count=3))
    home: dict[int, int] = {}
    for round in range(30):
        cohort = trainer.sample(round)
        shares = share_out(engine, {client: 1 + client % 3 for client in cohort})
        assert sorted(position for share in shares for position in share) == list(range(5))
        for rank, share in enumerate(shares):
            for position in share:
                assert home.setdefault(cohort[position], rank) == rank
    assert len(home) == 8 and set(home.values()) == {0, 1, 2}


@both_executors
@pytest.mark.parametrize("name", ["momentum", "adam"])
def test_every_client_starts_with_a_fresh_optimiser(name: str, executor: str) -> None:
    """In fluke, a cache passed one client's momentum to the next client."""
    # One step of SGD each from 2: 2 - 0.4 and 2 - 0.2; from their mean 1.7: 1.7 - 0.34 and 1.7 - 0.14. Adam's first step is lr.
    optimizer, ends = {
        "momentum": (partial(torch.optim.SGD, lr=0.1, momentum=0.9), (1.7, 1.46)),
        "adam": (partial(torch.optim.Adam, lr=0.1), (1.9, 1.8)),
    }[name]
    for rounds, end in enumerate(ends, 1):
        options: dict[str, Any] = {"local_steps": 1, "rounds": rounds, "executor": executor}
        module = flcog.Regressor(Point(2.0), optimizer=optimizer)
        trainer = train(module=module, data=Constants([0.0, 1.0]), clients_per_round=2, **options)
        assert float(trainer.run.params["model.w"]) == pytest.approx(end, abs=1e-7)


def test_a_client_smaller_than_a_batch_trains() -> None:
    """The loaders of FedDisco and others drop the last batch. A client with less than one batch then divides by zero."""
    data = TinyData(batch_size=12, drop_last=True)
    trainer = train(data=data, local_epochs=2, clients_per_round=8, rounds=1)
    steps = {client.id: [len(targets) for _, targets in client.batches] for client in trainer.recorded[0]}
    assert steps == {k: [min(12, size)] * 2 for k, size in enumerate(SIZES)}
    assert all(torch.isfinite(value).all() for value in trainer.run.params.values())
