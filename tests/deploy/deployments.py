"""Helpers for tests of deployments on loopback: configurations, histories without times, and a search for processes to kill."""

import csv
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from flcog.deploy.application import NODE
from flcog.deploy.numbering import shares

if TYPE_CHECKING:
    from flcog.deploy.loopback import Loopback  # needs Flower's packages

NODES, CLIENTS = 3, 6
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "WANDB_MODE": "disabled"}

CNN = {"class_path": "flcog.models.SimpleCNN", "init_args": {"in_channels": 1, "num_classes": 10}}


def config(*callbacks: Any, rounds: int = 2, **trainer: Any) -> dict[str, Any]:
    """The configuration of a run on the Digits data."""
    options = {"local_steps": 3, "executor": "loop", "chunk_size": 1, "logger": False, "accelerator": "cpu", "devices": 1}
    split = {"class_path": "flcog.datamodules.Dirichlet", "init_args": {"beta": 0.5}}
    return {
        "seed_everything": 0,
        "trainer": {"rounds": rounds, **options, **trainer, "callbacks": list(callbacks)},
        "model": {
            "class_path": "flcog.Classifier",
            "init_args": {"model": CNN, "optimizer": {"class_path": "torch.optim.SGD", "init_args": {"lr": 0.05}}},
        },
        "data": {
            "class_path": "flcog.datamodules.Digits",
            "init_args": {"num_clients": CLIENTS, "batch_size": 8, "partitioner": split},
        },
    }


def start_nodes(loopback: "Loopback", app: Path) -> None:
    """Start the nodes. Each takes its data from the app's example file."""
    for name in node_configs(app):
        loopback.register(name)
        start_node(loopback, name, app)
    for name in node_configs(app):
        loopback.wait_for_node(name)


def start_node(loopback: "Loopback", name: str, app: Path) -> None:
    loopback.start_node(name, node_configs(app)[name] | {"state": str(loopback.folder / f"{name}-state")})


def node_configs(app: Path) -> dict[str, dict[str, str]]:
    return {
        f"node{k}": {"config": str(app / NODE), "clients": " ".join(map(str, mine))}
        for k, mine in enumerate(shares(CLIENTS, NODES))
    }


def simulated(folder: Path, content: dict[str, Any]) -> list[dict[str, str]]:
    """The history of ``flcog fit`` with the same configuration."""
    folder.mkdir()
    (folder / "config.yaml").write_text(yaml.safe_dump(content))
    words = [sys.executable, "-m", "flcog", "fit", "-c", "config.yaml"]
    subprocess.run(words, cwd=folder, env={**os.environ, **ENVIRONMENT}, check=True, capture_output=True)
    return history(folder / "runs")


def history(root: Path) -> list[dict[str, str]]:
    """The rows of the only run under a folder, without times and the bytes on the wire."""
    (_,) = root.glob("*/metrics.csv")
    return [{name: value for name, value in row.items() if not name.startswith(("time/", "comm/wire"))} for row in rows(root)]


def rows(root: Path) -> list[dict[str, str]]:
    """The rows of the newest run under a folder."""
    paths = sorted(root.glob("*/metrics.csv"))
    if not paths:
        return []
    with paths[-1].open() as file:
        return list(csv.DictReader(file))


def until(seconds: float, test: Callable[[], Any]) -> Any:
    """Wait until the test returns a true value. Returns this value."""
    deadline = time.monotonic() + seconds
    while not (found := test()):
        assert time.monotonic() < deadline, f"not within {seconds:g} s"
        time.sleep(0.1)
    return found


def processes(*words: str) -> list[int]:
    """The ids of the processes that have all these words in their command lines."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if all(word in line for word in words):
            found.append(int(path.parent.name))
    return found
