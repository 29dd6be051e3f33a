"""Helpers for the tests of ``flcog bench``: a prepared trainer with its clients' batches, and plain torch on the same batches."""

import copy
from collections.abc import Callable
from typing import Any

import torch
from harness import MOMENTUM, TinyData, classifier, make_trainer
from reference import fedavg
from reference.common import Client, Problem

from flcog.commands.bench.bare import batches_of
from flcog.commands.bench.batches import Batches


def prepared(optimizer: Callable[..., Any] = MOMENTUM, **options: Any) -> tuple[Any, Batches, Any]:
    """A trainer before its first round, with its clients' batches."""
    network, batch_size = options.pop("network", None), options.pop("batch_size", 5)
    trainer = make_trainer(None, **({"local_epochs": 2, "precision": "32-true", "clients_per_round": 5} | options))
    trainer.prepare(classifier(optimizer, network), TinyData(batch_size))
    return trainer, *batches_of(trainer)


def reference(trainer: Any, batches: Batches, rounds: int, optimizer: Callable[..., Any] = MOMENTUM) -> dict[str, torch.Tensor]:
    """The model that plain torch trains on the batches of these rounds, with the parameter names of the network itself."""
    clients = [
        [
            Client(k, batches.samples(k)[1], [(inputs, targets) for inputs, targets in batches.of(round, k)])
            for k in trainer.sample(round)
        ]
        for round in range(rounds)
    ]
    network = copy.deepcopy(trainer.run.model.module.model)
    return fedavg.run(Problem(network, clients, batches.num_clients, optimizer, 0.0))
