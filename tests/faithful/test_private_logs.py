"""The values of single clients' steps stay in the process if the run is private."""

from pathlib import Path
from typing import Any

import pytest
from harness import TinyData
from lightning.pytorch.loggers import CSVLogger

import flcog
from faithful.modules import Plain
from flcog.callbacks import DPFedAvg
from flcog.method import Method


class Logs(Plain):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = super().training_step(batch, batch_idx)
        self.log("step_loss", loss, on_step=True)
        return loss

    def on_train_batch_end(self, *args: Any) -> None:
        """A hook for which it trains in Lightning's loops."""


@pytest.mark.parametrize("methods", [[], [DPFedAvg(noise_multiplier=1.0, clip=1.0)]], ids=["plain", "private"])
def test_a_private_run_logs_no_steps(tmp_path: Path, methods: list[Method]) -> None:
    logger = CSVLogger(tmp_path / "log")
    trainer = flcog.FederatedTrainer(
        rounds=1, callbacks=methods, logger=logger, log_every_n_steps=1, accelerator="cpu", default_root_dir=str(tmp_path)
    )
    trainer.fit(Logs(), TinyData())
    logged = Path(logger.log_dir, "metrics.csv").read_text()
    assert ("step_loss" in logged) == (not methods)
