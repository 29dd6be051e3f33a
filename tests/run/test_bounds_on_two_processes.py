"""Centralized and Local on two processes have the rows of one process, also after a resume and in a tracker, and send no bytes."""

import csv
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from harness import MOMENTUM, TESTS, BatchNormMLP, TinyData, classifier, without_times
from lightning.pytorch.loggers import CSVLogger

import flcog
from flcog.callbacks import Centralized, Local
from flcog.run.metrics_table import read_rows

SCRIPT = """
import sys
sys.path.insert(0, {tests!r})
from run.test_bounds_on_two_processes import run
run(*sys.argv[1:], devices=2)
"""


def run(name: str, root: str, rounds: str, ckpt_path: str | None = None, devices: int = 1) -> None:
    """Trains some rounds with an evaluation after each; one thread, so that rounding does not differ."""
    torch.set_num_threads(1)
    trainer = flcog.FederatedTrainer(
        rounds=int(rounds),
        local_steps=4,
        clients_per_round=5,
        eval_every=1,
        precision="64-true",
        callbacks=[{"Centralized": Centralized, "Local": Local}[name]()],
        logger=CSVLogger(f"{root}/tracked"),
        accelerator="cpu",
        devices=devices,
        default_root_dir=f"{root}/runs",
    )
    trainer.fit(classifier(MOMENTUM, BatchNormMLP), TinyData(client_test=0.3), ckpt_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["Centralized", "Local"])
def test_two_processes_do_what_one_does(name: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(tests=str(TESTS)))
    for folder, rounds, checkpoint in (("whole", "4", []), ("parts", "2", []), ("parts", "4", ["last"])):
        words = [sys.executable, str(script), name, str(tmp_path / folder), rounds, *checkpoint]
        subprocess.run(words, check=True, capture_output=True, timeout=200)
    run(name, str(tmp_path / "one"), "4")

    one, whole, parts = (
        without_times(read_rows(*(tmp_path / folder).glob("runs/*/metrics.csv"))) for folder in ("one", "whole", "parts")
    )
    assert [len(rows) for rows in (one, whole, parts)] == [4, 4, 4]
    for rows in (whole, parts):
        assert all(ours == pytest.approx(theirs, rel=1e-6) for ours, theirs in zip(rows, one, strict=True))
        assert {row[name] for row in rows for name in row if name.startswith("comm/")} == {0}
    for folder, rows in (("whole", whole), ("parts", parts)):
        files = sorted((tmp_path / folder).rglob("tracked/**/metrics.csv"))
        tracked = [line for path in files for line in csv.DictReader(path.open())]
        assert [float(line["test/accuracy"]) for line in tracked] == [row["test/accuracy"] for row in rows]
