"""Trackers receive no client's label counts, no command line and no secret; settings that W&B refuses are reported."""

import sys
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
import wandb
import yaml
from faithful.modules import Plain
from harness import TinyData, classifier
from lightning.pytorch.loggers import CSVLogger, Logger, WandbLogger
from torch.utils.data import DataLoader, TensorDataset

import flcog
from flcog.method import Callback
from flcog.run.observers.defaults import PartitionChart
from run.test_faulty_trackers import Faulty


class Listens(Faulty):
    """A tracker that takes pictures, too."""

    def __init__(self) -> None:
        super().__init__()
        self.pictures = list[str]()

    @property
    def experiment(self) -> Any:
        return self

    def add_figure(self, name: str, figure: Any, global_step: int) -> None:
        self.pictures.append(name)


def fit(root: Path, logger: Logger, *callbacks: Callback, config: Any = None) -> flcog.FederatedTrainer:
    options: dict[str, Any] = {"local_steps": 1, "accelerator": "cpu", "executor": "loop", "callbacks": list(callbacks)}
    trainer = flcog.FederatedTrainer(rounds=1, logger=logger, default_root_dir=str(root), **options)
    trainer.config = config
    trainer.fit(classifier(), TinyData())
    return trainer


def test_single_clients_stay_in_the_runs_directory(tmp_path: Path) -> None:
    tracker = Listens()
    trainer = fit(tmp_path, tracker)
    assert trainer.run_dir is not None and (trainer.run_dir / "figures/partition-000000.png").is_file()
    local = yaml.safe_load((trainer.run_dir / "run.yaml").read_text())["partition"]
    told = tracker.parameters["run"]["partition"]
    assert tracker.pictures == [] and "partition" not in tracker.parameters
    assert told.keys() == {"clients", "samples/train", "samples/left_out", "classes", "hash", "imbalance/classes", "kl/pooled"}
    assert told.items() <= local.items() and {"size/min", "kl/max", "labels/mean", "imbalance/clients"} <= local.keys()


def test_they_leave_it_where_they_are_asked_for(tmp_path: Path) -> None:
    tracker = Listens()
    trainer = fit(tmp_path, tracker, PartitionChart(log_partition=True))
    assert tracker.pictures == ["partition"] and trainer.run_dir is not None
    local = yaml.safe_load((trainer.run_dir / "run.yaml").read_text())["partition"]
    assert tracker.parameters["partition"] == local


def test_the_command_and_secrets_stay_at_home(tmp_path: Path, command_line: None) -> None:
    sys.argv[:] = ["flcog", "fit", "--data.hub_token", "s3cret", "--trainer.rounds=1"]
    config = {"data": {"init_args": {"hub_token": "s3cret"}}, "trainer": {"rounds": 1}}
    tracker = Listens()
    trainer = fit(tmp_path, tracker, config=config)
    assert trainer.run_dir is not None
    assert "command" not in tracker.parameters["run"] and "s3cret" not in str(tracker.parameters)
    assert tracker.parameters["config"] == {"data": {"init_args": {"hub_token": "***"}}, "trainer": {"rounds": 1}}
    run = yaml.safe_load((trainer.run_dir / "run.yaml").read_text())
    assert run["command"] == "flcog fit --data.hub_token '***' --trainer.rounds=1"
    assert yaml.safe_load((trainer.run_dir / "config.yaml").read_text()) == config, "which must run again"


@pytest.fixture
def nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NETRC", str(tmp_path / "no-netrc"))
    monkeypatch.delenv("WANDB_API_KEY", raising=False)


@pytest.mark.slow
def test_wandb_does_not_fetch_them_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nobody: None, command_line: None
) -> None:
    """By default, W&B would record the command line, and ask git about the working directory."""
    sys.argv[:] = ["flcog", "fit", "--data.hub_token", "s3cret"]
    monkeypatch.delenv("WANDB_MODE", raising=False)
    wandb.setup()
    try:
        trainer = fit(tmp_path / "runs", WandbLogger(offline=True))
    finally:
        wandb.teardown()  # returns when all records are written
    assert trainer.run_dir is not None
    (file,) = trainer.run_dir.glob("wandb/offline-run-*/run-*.wandb")
    content = file.read_bytes()
    assert b"num_clients" in content and b"s3cret" not in content
    settings = trainer.loggers[0]._wandb_init["settings"]  # type: ignore[attr-defined]
    assert settings["disable_git"]


class Stores(Plain):
    def __init__(self, lr: float, run: str, token: str, network: Any, share: bool = True) -> None:
        super().__init__()
        self.save_hyperparameters(logger=share)


class StoresData(L.LightningDataModule):
    def __init__(self, width: int, lr: float) -> None:
        super().__init__()
        self.save_hyperparameters()

    def train_dataloader(self) -> Any:
        return DataLoader(TensorDataset(torch.randn(12, 6), torch.arange(12) % 3), batch_size=4)


@pytest.mark.filterwarnings("ignore:checkpoints do not store", "ignore:Attribute 'network'")
@pytest.mark.parametrize("share", [True, False])
def test_they_get_the_hyperparameters_that_modules_store(share: bool, tmp_path: Path) -> None:
    """flcog's own entry ``run`` stays, secrets are masked, and a network is left out."""
    logger, module = CSVLogger(tmp_path / "csv"), Stores(0.0625, "mine", "secret", torch.nn.Linear(1, 1), share)
    trainer = flcog.FederatedTrainer(
        rounds=1, local_steps=1, clients_per_round=1, default_root_dir=str(tmp_path), logger=logger, accelerator="cpu"
    )
    data = StoresData(width=3, lr=0.5 if share else 0.25)
    trainer.fit(module, data)
    found = yaml.safe_load(Path(logger.log_dir, "hparams.yaml").read_text())
    assert (found["width"], found["lr"], found["run"]["model"]) == (3, 0.5 if share else 0.25, "Stores")
    assert ("token" in found) == share and "secret" not in str(found) and "network" not in found
