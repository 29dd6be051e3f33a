"""Large packages are imported only where they are needed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


LATE = {"sklearn", "pandas", "diffusers", "opacus", "dp_accounting"}
"""Packages that are slow to import and not needed in the first round of a run."""

FIRST_ROUND = f"""
import sys
import flcog, flcog.datamodules

class Look(flcog.Callback):
    def on_round_start(self, run, round, cohort):
        assert not (early := {LATE} & sys.modules.keys()), early

import flcog.callbacks

all(getattr(flcog.callbacks, name) for name in flcog.callbacks.__all__)
trainer = flcog.FederatedTrainer(rounds=1, local_steps=1, accelerator="cpu", callbacks=[Look()])
trainer.fit(flcog.Classifier(flcog.models.SimpleCNN(1, 10)), flcog.datamodules.Digits(num_clients=2))
"""


@pytest.mark.slow
def test_the_first_round_starts_without_large_packages(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("WANDB")}
    environment |= {"HOME": str(tmp_path), "NETRC": str(tmp_path / "none")}
    subprocess.run([sys.executable, "-c", FIRST_ROUND], cwd=tmp_path, env=environment, check=True)
