"""All processes of a run train each client together, by one of Lightning's strategies: as one process that takes the whole batch."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from harness import TinyData, adapted, assert_close, classifier, make_trainer
from lightning.pytorch.strategies import ModelParallelStrategy
from torch import nn
from torch.distributed.fsdp import fully_shard
from two_processes import on_one_and_two_processes

import flcog
from faithful.modules import Plain
from flcog.callbacks import SCAFFOLD, FedAvgM, FedProx
from flcog.client.work import ClientWork

METHODS: dict[str, list[Any]] = {"FedAvg": [], "FedProx": [FedProx(mu=0.1)], "SCAFFOLD": [SCAFFOLD()], "LoRA": []}


def on_processes(path: str, devices: int) -> None:
    """Train with each method. The first process writes the rows and the model."""
    found: dict[str, Any] = {}
    for name, methods in METHODS.items():
        together = {"client_strategy": "ddp"} if devices > 1 else {}
        trainer = make_trainer(None, *methods, devices=devices, rounds=3, executor="lightning", clients_per_round=4, **together)
        trainer.prepare(adapted(rank=2) if name == "LoRA" else classifier(), TinyData(drop_last=True))
        rows = [trainer.train_round() for _ in range(3)]
        found[name] = {"rows": rows, "state": {key: value.tolist() for key, value in trainer.state.items()}}
    if trainer.run.processes.is_first:
        Path(path).write_text(json.dumps(found))


@pytest.mark.slow
def test_ddp_trains_each_client_on_two_processes_as_one_process_does(tmp_path: Path) -> None:
    one, two = on_one_and_two_processes(on_processes, tmp_path)
    for name in METHODS:
        assert [row["train/loss"] for row in two[name]["rows"]] == pytest.approx([row["train/loss"] for row in one[name]["rows"]])
        assert_close(*({key: torch.tensor(value) for key, value in end[name]["state"].items()} for end in (two, one)), 1e-9)


class Divided(Plain):
    """A module whose parameters torch's ``fully_shard`` divides among the processes."""

    def configure_model(self) -> None:
        if self.device_mesh is not None:
            fully_shard(self.net, mesh=self.device_mesh["data_parallel"])

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val_loss", nn.functional.cross_entropy(self.net(batch[0]), batch[1]))


def divided(path: str, devices: int) -> None:
    """Train such a module with server momentum, and evaluate it after each round."""
    strategy = ModelParallelStrategy(data_parallel_size=2, tensor_parallel_size=1)
    together: dict[str, Any] = {"client_strategy": strategy} if devices > 1 else {}
    together |= {"precision": "32-true", "devices": devices, "executor": "lightning"}
    trainer = make_trainer(Path(path).parent, FedAvgM(), rounds=3, eval_every=1, **together)
    trainer.fit(Divided(), TinyData(drop_last=True))
    refused = ""
    if devices > 1:
        strategy = ModelParallelStrategy(data_parallel_size=2, tensor_parallel_size=1)
        other = make_trainer(None, FedProx(), **(together | {"client_strategy": strategy}))
        with pytest.raises(ValueError) as error:
            other.prepare(Divided(), TinyData())
        refused = str(error.value)
    if trainer.run.processes.is_first:
        state = {key: value.tolist() for key, value in trainer.state.items()}
        Path(path).write_text(json.dumps({"rows": trainer.history, "state": state, "refused": refused}))


@pytest.mark.slow
def test_a_client_may_be_divided_among_processes(tmp_path: Path) -> None:
    one, two = on_one_and_two_processes(divided, tmp_path)
    for column in ("train/loss", "test/accuracy"):
        assert [row[column] for row in two["rows"]] == pytest.approx([row[column] for row in one["rows"]])
    assert_close(*({key: torch.tensor(value) for key, value in end["state"].items()} for end in (two, one)), 1e-6)
    assert "FedProx acts in clients' steps" in two["refused"] and "\n" not in two["refused"]


def test_each_process_takes_an_equal_part_of_each_batch() -> None:
    work = ClientWork(0, 9, 2, 1.0, np.arange(9), np.arange(10, 19), np.array([0, 4]), np.array([4, 5]), np.arange(9) * 2)
    one, two = work.part(0, 2), work.part(1, 2)
    assert one.order.tolist() == [10, 11, 14, 15, 16] and one.starts.tolist() == [0, 2] and one.sizes.tolist() == [2, 3]
    assert two.order.tolist() == [12, 13, 17, 18, 14]  # the first sample fills up the second batch
    assert one.keys is not None and one.keys.tolist() == [0, 2, 8, 10, 12]
    assert work.part(0, 1) is work


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"client_strategy": "dpp"}, "You selected an invalid strategy name"),
        ({"client_strategy": "fsdp"}, "fsdp"),
        ({"client_strategy": "ddp", "processes_per_device": 2}, "processes_per_device=2 divides the clients"),
    ],
)
def test_a_strategy_that_cannot_train_clients_is_refused_in_one_line(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message) as error:
        flcog.FederatedTrainer(accelerator="cpu", devices=2, logger=False, **options)
    assert "\n" not in str(error.value)
