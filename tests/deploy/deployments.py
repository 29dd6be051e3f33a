"""Helpers for tests of deployments: configurations, histories without times, and the processes of a real deployment on loopback."""

import csv
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import yaml

ROOT = Path(__file__).parents[2]
CLIENTS, NODES = 6, 3
BINARIES = Path(sys.executable).parent
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "WANDB_MODE": "disabled", "PYTHONUNBUFFERED": "1"}
QUICK = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}

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


class Deployment:
    """The processes of docs/deployment.md on loopback: a SuperLink, nginx before it, ``flcog server``, and nodes.

    Args:
        folder: of certificates, keys, logs and states.
        app: the app's folder.
    """

    def __init__(self, folder: Path, app: Path) -> None:
        self.folder, self.app, self.processes = folder, app, dict[str, subprocess.Popen[Any]]()
        self.port, self.door = free_port(), free_port()
        self.ports = [free_port() for _ in range(NODES)]
        self.environment = {**os.environ, **ENVIRONMENT, **QUICK, "FLWR_HOME": str(folder / "home")}
        self.environment["PATH"] = f"{BINARIES}:{os.environ['PATH']}:/usr/sbin"
        (folder / "home").mkdir(parents=True)

    def __enter__(self) -> Self:
        commands = (ROOT / "docs" / "deployment.md").read_text()
        for name in ("certificates", "secrets"):  # as an administrator would, from the page
            (block,) = re.findall(rf"<!-- {name} -->\n```bash\n(.*?)```", commands, re.S)
            script = block.replace("server.example.org", "localhost")
            subprocess.run(["bash", "-ec", script], cwd=self.folder, check=True, capture_output=True)
        for k in range(NODES):
            self.make_key(f"node{k}")
        text = (ROOT / "docs" / "deployment" / "nginx.conf").read_text()
        text = text.replace("8443", str(self.door)).replace("127.0.0.1:8000", f"127.0.0.1:{self.port}")
        (self.folder / "nginx.conf").write_text(text)
        links = "".join(
            f'[superlink.{name}]\naddress = "localhost:{port}"\nroot-certificates = "{self.folder / "ca.crt"}"\n'
            for name, port in (("here", self.port), ("public", self.door))
        )
        (self.folder / "home" / "config.toml").write_text(f'[superlink]\ndefault = "here"\n{links}')
        self.start_superlink()
        self.start("nginx", "nginx", "-p", str(self.folder), "-c", str(self.folder / "nginx.conf"))
        self.start_server()
        return self

    def __exit__(self, *error: Any) -> None:
        for name in reversed([*self.processes]):
            self.kill(name)

    def start(self, name: str, *words: str) -> None:
        with (self.folder / f"{name}.log").open("a") as log:
            self.processes[name] = subprocess.Popen(
                words,
                env=self.environment,
                cwd=self.folder,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )

    def start_superlink(self) -> None:
        files = ("--ssl-ca-certfile", "ca.crt", "--ssl-certfile", "server.pem", "--ssl-keyfile", "server.key")
        own = ("--isolation", "process", "--superexec-auth-secret-file", "secret", "--database", "superlink.db")
        self.start("superlink", "flower-superlink", *own, *files, "--enable-supernode-auth", "--port", str(self.port))
        until(60, lambda: "Application startup complete" in self.log("superlink") or self.answers())

    def answers(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def start_server(self) -> None:
        words = ("--secret", "secret", "--superlink", f"localhost:{self.port}", "--root-certificates", "ca.crt")
        self.start("server", "flcog", "server", str(self.app), *words)

    def make_key(self, name: str) -> None:
        subprocess.run(["ssh-keygen", "-q", "-t", "ecdsa", "-b", "384", "-N", "", "-f", str(self.folder / name)], check=True)

    def start_nodes(self, data: Sequence[Path] = ()) -> None:
        """Register and start all nodes. Each takes its data from the app's example file, or from its own."""
        for k in range(NODES):
            self.flwr("supernode", "register", f"node{k}.pub", "here")
            self.start_supernode(k)
            self.start_node(k, data[k] if data else self.app / "node.yaml")
        for k in range(NODES):
            until(90, lambda k=k: "SuperNode ID" in self.log(f"supernode{k}"))

    def start_supernode(self, k: int, key: str = "", authority: str = "ca.crt", name: str = "") -> None:
        own = ("--isolation", "process", "--superexec-auth-secret-file", "secret", "--port", str(self.ports[k]))
        link = ("--superlink", f"localhost:{self.door}", "--root-certificates", authority)
        words = (*own, *link, "--auth-supernode-private-key", key or f"node{k}", *(("--max-retries", "1") if key else ()))
        self.start(name or f"supernode{k}", "flower-supernode", *words)

    def start_node(self, k: int, data: Path, app: Path | None = None) -> None:
        own = ("--clients", *map(str, range(k, CLIENTS, NODES)), "--state", f"state{k}", "--data", str(data))
        link = ("--secret", "secret", "--supernode", f"127.0.0.1:{self.ports[k]}")
        self.start(f"node{k}", "flcog", "node", str(app or self.app), *own, *link)

    def flwr(self, *words: str) -> str:
        """The output of a command of Flower's."""
        done = subprocess.run(["flwr", *words], env=self.environment, cwd=self.folder, capture_output=True, text=True)
        if done.returncode:
            raise ValueError(done.stdout + done.stderr)
        return done.stdout

    def run(self, options: Mapping[str, Any], app: Path | None = None) -> int:
        """Submit an app, and return the number of its run."""
        words = " ".join(f"{name}={json.dumps(value)}" for name, value in options.items())
        answer = json.loads(self.flwr("run", str(app or self.app), "here", "--run-config", words, "--format", "json"))
        return int(answer["run-id"])

    def status(self, run: int) -> str:
        records = json.loads(self.flwr("list", "here", "--run-id", str(run), "--format", "json"))["runs"]
        return str(next(each["status"] for each in records if int(each["run-id"]) == run))

    def finish(self, run: int, seconds: float = 300) -> str:
        return str(until(seconds, lambda: (status := self.status(run)).startswith("finished") and status))

    def log(self, name: str) -> str:
        path = self.folder / f"{name}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def kill(self, name: str) -> None:
        """Kill a process and all processes that it has started."""
        process = self.processes.pop(name)
        os.killpg(process.pid, signal.SIGKILL) if process.poll() is None else None
        process.wait()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


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
