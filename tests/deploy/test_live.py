"""A real SuperLink and three SuperNodes on loopback, with TLS and node keys, give a simulation's numbers, even if processes are killed."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

pytest.importorskip("flwr")

from deploy.deployments import (
    CLIENTS,
    ENVIRONMENT,
    NODES,
    config,
    history,
    processes,
    rows,
    simulated,
    start_node,
    start_nodes,
    until,
)
from flcog.deploy.application import write_app
from flcog.deploy.certificates import make_certificates, make_node_key
from flcog.deploy.loopback import Loopback, reason_in

pytestmark = [pytest.mark.slow, pytest.mark.long]

RUNS = {
    "FedAvg": config(),
    "SCAFFOLD and FedDisco": config("flcog.callbacks.SCAFFOLD", "flcog.callbacks.FedDisco"),
    "FedCOG": config({"class_path": "flcog.callbacks.FedCOG", "init_args": {"start_round": 1, "num_samples": 16, "steps": 3}}),
}


@pytest.fixture
def loopback(tmp_path: Path) -> Iterator[Loopback]:
    with Loopback(tmp_path / "loopback", ENVIRONMENT) as running:
        yield running
    until(5, lambda: not processes(str(tmp_path)))  # workers end with their nodes


def app_of(folder: Path, content: dict[str, Any]) -> Path:
    write_app(folder, content, CLIENTS, NODES)
    return folder


def finish(loopback: Loopback, run: int, seconds: float = 300) -> str:
    return until(seconds, lambda: (status := loopback.status(run)[0]).startswith("finished") and status)


def test_a_deployment_equals_a_simulation(loopback: Loopback, tmp_path: Path) -> None:
    apps = {name: app_of(tmp_path / f"app-{name[:6]}", content) for name, content in RUNS.items()}
    start_nodes(loopback, next(iter(apps.values())))
    for name, app in apps.items():
        root = tmp_path / f"runs-{name[:6]}"
        run = loopback.run(app, {"root": str(root)})
        assert finish(loopback, run) == "finished:completed", output(loopback, run)
        assert history(root) == simulated(tmp_path / f"simulated-{name[:6]}", RUNS[name]), name
        wire = sum(float(row["comm/wire_up_bytes"]) for row in rows(root))
        assert wire <= loopback.status(run)[1]["network-traffic"]["inbound-bytes"] < 1.1 * wire + 1e5
    strangers_are_refused(loopback, tmp_path)


def output(loopback: Loopback, run: int) -> str:
    return loopback.flwr("log", str(run), "here", "--show")


def strangers_are_refused(loopback: Loopback, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    make_certificates(tmp_path / "other")
    make_node_key(loopback.folder / "stranger")
    for name, authority in (("stranger", "ca.crt"), ("node0", str(tmp_path / "other" / "ca.crt"))):
        known = loopback.processes.pop(name, None)
        log = loopback.log(name)
        loopback.start_node(name, {"clients": "0"}, authority)
        assert until(60, loopback.processes[name].poll) != 0
        assert "Exit Code" in reason_in(loopback.log(name)), loopback.log(name)
        assert known is None or log != loopback.log(name)
        if known is not None:
            loopback.processes[name] = known


def test_a_trial_reads_relative_paths_from_the_users_folder(tmp_path: Path) -> None:
    inputs, targets = np.random.default_rng(0).normal(size=(40, 6)).astype("float32"), np.arange(40) % 3
    np.savez(tmp_path / "mine.npz", train_inputs=inputs, train_targets=targets, test_inputs=inputs, test_targets=targets)
    network = {"class_path": "flcog.models.SoftmaxRegression", "init_args": {"in_features": 6, "num_classes": 3}}
    content = config(rounds=1)
    content["model"]["init_args"]["model"] = network
    content["data"] = {"class_path": "flcog.datamodules.ArrayData", "init_args": {"path": "mine.npz", "num_clients": 2}}
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(content))
    words = [sys.executable, "-m", "flcog", "deploy", "-c", "mine.yaml", "--try", "2", "--out", "app"]
    done = subprocess.run(words, cwd=tmp_path, env={**os.environ, **ENVIRONMENT}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert history(tmp_path / "runs") == simulated(tmp_path / "simulated", content | {"data": in_folder(content, tmp_path)})


def in_folder(content: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The data of a configuration, with an absolute path."""
    data = content["data"]
    return data | {"init_args": data["init_args"] | {"path": str(folder / "mine.npz")}}


def test_every_kind_of_process_may_be_killed(loopback: Loopback, tmp_path: Path) -> None:
    content = config("flcog.callbacks.SCAFFOLD", rounds=5)
    app, root, state = app_of(tmp_path / "app", content), tmp_path / "runs", str(loopback.folder / "node1-state")
    start_nodes(loopback, app)
    run = loopback.run(app, {"root": str(root)})
    until(120, lambda: len(rows(root)) == 1)
    os.kill(until(60, lambda: processes("flcog.deploy.worker", state))[0], signal.SIGKILL)  # its reply is lost
    until(120, lambda: len(rows(root)) == 2)
    loopback.kill("node1")
    restarted = until(240, lambda: rejoined(loopback, app))
    assert restarted
    until(240, lambda: len(rows(root)) == 3)
    os.kill(processes("flwr-serverapp", loopback.address)[0], signal.SIGKILL)
    assert finish(loopback, run) != "finished:completed"
    run = loopback.run(app, {"root": str(root), "ckpt_path": "last"})
    until(180, lambda: len(rows(root)) >= 4)
    loopback.kill("superlink")
    for name in list(loopback.processes):
        loopback.kill(name)
    loopback.start_superlink()
    for k in range(NODES):
        loopback.flwr("supernode", "register", str(loopback.folder / f"node{k}.pub"), "here")
        start_node(loopback, f"node{k}", app)
    run = loopback.run(app, {"root": str(root), "ckpt_path": "last"})
    assert finish(loopback, run) == "finished:completed", output(loopback, run)
    assert history(root) == simulated(tmp_path / "simulated", content)


def rejoined(loopback: Loopback, app: Path) -> bool:
    """Start the node again. Returns whether the SuperLink accepts it, which may take a minute, until it misses the old node's heartbeat."""
    start_node(loopback, "node1", app)
    until(90, lambda: "SuperNode ID" in loopback.log("node1") or loopback.processes["node1"].poll() is not None)
    return "SuperNode ID" in loopback.log("node1")
