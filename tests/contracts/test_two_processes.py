"""Two processes train the run of one process: its rows and figures, its model, its clients' rows and its bytes."""

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from engine.test_selection import METHODS, Listed
from harness import RAGGED, BatchNormMLP, Spoils, TinyData, classifier, make_trainer
from two_processes import on_one_and_two_processes

import flcog
from flcog.callbacks import (
    SCAFFOLD,
    Bucketing,
    CenteredClipping,
    Centralized,
    Deadline,
    DPFedAvg,
    FedBuff,
    FedRep,
    Local,
    Mimic,
    Oort,
    OverSelect,
    PoissonSampling,
    PowerOfChoice,
    SecureAggregation,
    SystemModel,
)

PRIVATE = partial(DPFedAvg, clip=0.5, noise_multiplier=2.0)
CLOCK = SystemModel(spread="half-normal", seconds_per_step=0.5, download=1000.0, upload=500.0)


class Setting(NamedTuple):
    """A run, with the largest relative difference; None if two runs have nothing in common, because their noise is secret."""

    methods: Sequence[flcog.Method]
    options: dict[str, Any] = {}
    off: float | None = 1e-6


SETTINGS = {name: Setting((Listed(), *methods), {"rounds": 6}) for name, methods in METHODS.items()} | {
    "losses of candidates": Setting((PowerOfChoice(candidates=7),)),
    "losses of trainings": Setting((Oort(), SystemModel(spread="log-normal"))),
    "single uploads": Setting((Mimic(clients=(1, 4)), Bucketing(), CenteredClipping(radius=0.2), SCAFFOLD())),
    "clients in flight": Setting((CLOCK, FedBuff(concurrency=6, buffer=3), SCAFFOLD()), {"rounds": 5, **RAGGED}),
    "time": Setting((CLOCK, Deadline(seconds=5.0), OverSelect(factor=1.3), SCAFFOLD()), {"rounds": 4, **RAGGED}),
    "a process without clients": Setting((SecureAggregation(), SCAFFOLD()), {"clients_per_round": 1}, 0),
    "secure sums": Setting((SecureAggregation(), SCAFFOLD()), {}, 0),
    "secure sums again": Setting((SecureAggregation(), Spoils()), {"clients_per_round": 8, "on_bad_update": "drop"}, 0),
    "discrete noise": Setting((SecureAggregation(), PRIVATE(noise_at="clients", delta=0.01, repeatable=True)), {}, 0),
    "noise": Setting((SCAFFOLD(), PRIVATE(repeatable=True, quantile=0.5, count_noise=4.0), PoissonSampling(rate=0.5))),
    "secret noise": Setting((SCAFFOLD(), PRIVATE(), PoissonSampling(rate=0.5)), {}, None),
    "own models": Setting((FedRep(),)),
    "pooled": Setting((Centralized(),)),
    "apart": Setting((Local(),)),
}


def on_processes(path: str, devices: int) -> None:
    """Trains and evaluates each setting, and checks that all processes have the same model. The first process writes the results."""
    found: dict[str, Any] = {}
    for name, (methods, options, _) in SETTINGS.items():
        trainer = make_trainer(None, *methods, devices=devices, accelerator="cpu", **options)
        network = BatchNormMLP if name in ("pooled", "apart") else None
        trainer.prepare(classifier(network=network), TinyData(client_test=0.3))
        rows = [trainer.train_round() for _ in range(trainer.settings.rounds)]
        model = torch.cat([value.flatten().double() for value in trainer.state.values()]).tolist()
        assert all(other == model for other in trainer.run.processes.gather(model)), name
        figures, clients = trainer.evaluate(), trainer.clients.drop(columns="seconds", errors="ignore")
        found[name] = [*rows, figures, dict(enumerate(model)), json.loads(clients.fillna(-1).stack().to_json(orient="values"))]
    if trainer.run.processes.is_first:
        Path(path).write_text(json.dumps(found))


@pytest.mark.slow
def test_two_processes_do_what_one_does(tmp_path: Path) -> None:
    one, two = on_one_and_two_processes(on_processes, tmp_path)
    for name, (_, _, off) in SETTINGS.items():
        if off is not None:
            assert two[name] == [pytest.approx(part, rel=off, abs=1e-9 * (off > 0), nan_ok=True) for part in one[name]], name
    assert one["secure sums again"][0]["clients/dropped"] == 1
    sent = [row[column] for name in ("pooled", "apart") for row in two[name][:3] for column in row if column.startswith("comm/")]
    assert {*sent} == {0}
