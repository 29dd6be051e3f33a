"""Several processes: if one dies, the others say so, and a run refuses another number of processes than requested."""

import atexit
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from harness import TESTS, TinyData, classifier
from lightning.fabric.plugins.environments import LightningEnvironment, SLURMEnvironment, TorchElasticEnvironment
from two_processes import started

import flcog
from flcog.core import lost_processes
from flcog.method import Callback


class Fails(Callback):
    """In round 2, kills one process or all of them, or raises an error there."""

    def __init__(self, who: int | None, how: str) -> None:
        self.who, self.how = who, how

    def on_round_start(self, run: flcog.Run, round: int, cohort: Any) -> None:
        if round == 2 and self.who in (run.processes.rank, None):
            if self.how == "error":
                raise KeyError("a fault of its own")
            os.kill(os.getpid(), signal.SIGKILL)


def configuration(root: Path, **trainer: Any) -> Path:
    network = {"class_path": "flcog.models.MLP", "init_args": {"in_features": 6, "hidden": [8], "num_classes": 3}}
    setting = {
        "trainer": {"rounds": 3, "local_steps": 2, "logger": False, "accelerator": "cpu", "precision": "64-true", **trainer},
        "model": {"class_path": "flcog.Classifier", "init_args": {"model": network}},
        "data": {"class_path": "harness.TinyData"},
    }
    setting["trainer"] |= {"default_root_dir": str(root / "runs")}
    path = root / "config.yaml"
    path.write_text(yaml.safe_dump(setting))
    return path


def fit(root: Path, **trainer: Any) -> tuple[int, list[str]]:
    """The exit status of the first process, and the lines that all processes have written to stderr."""
    root.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "flcog", "fit", "-c", str(configuration(root, **trainer))]
    environment = os.environ | {"PYTHONPATH": str(TESTS)}
    # This returns when the last process has closed the pipe, so it would time out if a process were left behind.
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240)
    return result.returncode, result.stderr.splitlines()


@pytest.mark.slow
@pytest.mark.parametrize("who", [0, 1])
@pytest.mark.parametrize("how", ["kill", "error"])
def test_a_process_says_that_another_has_died(tmp_path: Path, who: int, how: str) -> None:
    fault = {"class_path": "core.test_lost_processes.Fails", "init_args": {"who": who, "how": how}}
    code, lines = fit(tmp_path, devices=2, callbacks=[fault])
    assert code != 0
    (line,) = [line for line in lines if "died" in line]
    assert "flcog: error: another process died or cannot be reached: go on with " in line and " --ckpt_path " in line
    assert how == "kill" or sum("KeyError: 'a fault of its own'" in line for line in lines) == 1


def on_two_processes(root: str) -> flcog.FederatedTrainer:
    options: dict[str, Any] = {"local_steps": 2, "logger": False, "accelerator": "cpu", "devices": 2, "default_root_dir": root}
    trainer = flcog.FederatedTrainer(rounds=3, **options)
    trainer.fit(classifier(), TinyData())
    return trainer


def to_the_end(root: str, fails: bool) -> None:
    atexit.register(lambda: print("connected" if torch.distributed.is_initialized() else "disconnected"))
    trainer = on_two_processes(root)
    if fails:
        trainer.fit(classifier(), object())  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.parametrize("fails", [False, True])
def test_processes_disconnect_before_python_ends(tmp_path: Path, fails: bool) -> None:
    """PyTorch may abort a process that ends while it is connected. After an error, disconnecting could wait for another process."""
    process = started(to_the_end, tmp_path, str(tmp_path / "runs"), fails)
    output, _ = process.communicate(timeout=240)
    assert process.returncode == int(fails)
    ends = re.findall("(?:dis)?connected", output)  # two processes may write into one line
    assert ends == (["connected"] if fails else ["disconnected"]) * 2


def test_only_what_a_collective_says_is_explained() -> None:
    own = RuntimeError("a fault of its own")
    with pytest.raises(RuntimeError, match="a fault of its own"), lost_processes.watched(str):
        raise own
    broken = RuntimeError("[third_party/gloo/gloo/transport/tcp/pair.cc:561] Connection closed by peer [127.0.0.1]:10128")
    cut_off = pytest.raises(ValueError, match="another process died or cannot be reached: start again")
    with cut_off, lost_processes.watched(lambda: "start again"):
        raise broken


def test_the_number_of_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    elastic = TorchElasticEnvironment()
    lost_processes.check_number(elastic, 2)
    with pytest.raises(ValueError, match="ask for 1 process, but TorchElasticEnvironment has 2: start as many"):
        lost_processes.check_number(elastic, 1)  # without this error, each process would train the whole run
    lost_processes.check_number(LightningEnvironment(), 3)  # flcog starts the processes
    monkeypatch.setenv("SLURM_NTASKS", "4")
    monkeypatch.setenv("SLURM_NTASKS_PER_NODE", "4")
    lost_processes.check_number(SLURMEnvironment(), 1)  # called by the batch script without srun, it is one process
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "4")
    with pytest.raises(ValueError, match="ask for 1 process, but SLURMEnvironment has 4"):
        lost_processes.check_number(SLURMEnvironment(), 1)
