"""Starts a node's worker, finds it again at the next message, and knows the process of the node. Loads no torch."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from flcog.deploy.link import connect, send

START_SECONDS = 60.0
"""A worker listens within these seconds of its start."""

LOG_BYTES = 2000
"""Bytes at the end of a worker's log that can contain the reason of its death."""


@dataclass(frozen=True)
class Worker:
    """A node's worker for one run.

    Args:
        run: Flower's number of the run.
        state: the folder of the clients' states.
        app: the folder of the app, with its ``config.yaml``.
        clients: the numbers of the clients that the node hosts.
        of: the number of all clients.
        data: the YAML file with the node's data.
        node: the process of the node: its number and the time of its start.
    """

    run: str
    state: str
    app: str
    clients: tuple[int, ...]
    of: int
    data: str
    node: tuple[int, str]

    @property
    def folder(self) -> Path:
        """The folder of the worker's socket, lock and log."""
        return Path(self.state, f"worker-{self.run}")

    @property
    def socket(self) -> Path:
        return self.folder / "socket"

    @property
    def log(self) -> Path:
        return self.folder / "log"

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def of_json(cls, text: str) -> "Worker":
        fields = json.loads(text)
        return cls(**fields | {"clients": tuple(fields["clients"]), "node": tuple(fields["node"])})


def reach(worker: Worker) -> socket.socket:
    """A connection to the worker, which is started if there is none."""
    process: subprocess.Popen[Any] | None = None
    deadline = time.monotonic() + START_SECONDS
    while (link := connect(worker.socket)) is None:
        if process is None:
            process = _start(worker)
        elif (process.poll() or time.monotonic() > deadline) and connect(worker.socket) is None:
            raise ValueError(f"the node's worker does not start: {last_words(worker.log)}")
        time.sleep(0.02)
    return link


def end(worker: Worker) -> None:
    """End the worker, if there is one."""
    if (link := connect(worker.socket)) is not None:
        with link:
            send(link, {"end": b""})


def last_words(log: Path) -> str:
    """The last line of a log."""
    try:
        lines = log.read_bytes()[-LOG_BYTES:].decode(errors="replace").split("\n")
    except OSError:
        lines = []
    return next((line.strip() for line in reversed(lines) if line.strip()), f"its log {log} is empty")


def _start(worker: Worker) -> subprocess.Popen[Any]:
    worker.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    with worker.log.open("ab") as log:
        command = [sys.executable, "-P", "-m", "flcog.deploy.worker", worker.to_json()]
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)


def start_of(process: int) -> str:
    """The start of a process, in ticks since the machine's start; empty on systems without ``/proc``."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return ""


def is_alive(process: tuple[int, str]) -> bool:
    """Whether a process lives, and is not a later one with the same number."""
    number, started = process
    try:
        os.kill(number, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return start_of(number) == started


def end_with(process: tuple[int, str]) -> None:
    """Kill this process when another one has ended."""

    def watch() -> None:
        while is_alive(process):
            time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, name="end-with", daemon=True).start()


def seconds_alive() -> float:
    """The age of this process; 0 on systems without ``/proc``."""
    ticks = start_of(os.getpid())
    if not ticks:
        return 0.0
    return float(Path("/proc/uptime").read_text().split()[0]) - int(ticks) / os.sysconf("SC_CLK_TCK")
