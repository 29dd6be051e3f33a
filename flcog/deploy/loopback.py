"""A whole deployment on one machine: a SuperLink and SuperNodes on loopback, with TLS and node authentication."""

import ctypes
import json
import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from flcog.deploy.certificates import make_certificates, make_node_key

READY_SECONDS = 120.0
"""A SuperLink or a SuperNode starts within this time."""

PR_SET_PDEATHSIG = 1
"""The option of Linux's prctl."""

END_SECONDS = 10.0
"""Processes have this time to end after SIGTERM."""


class Loopback:
    """Starts a SuperLink, and SuperNodes when asked, and ends all of them when the context ends.

    Args:
        folder: of certificates, keys, logs and the nodes' states.
        environment: further environment variables of all processes.
    """

    def __init__(self, folder: Path, environment: Mapping[str, str] | None = None) -> None:
        self.folder, self.port = folder, free_port()
        self.processes: dict[str, subprocess.Popen[Any]] = {}
        binaries = str(Path(sys.executable).parent)
        self.environment = {
            **os.environ,
            "PATH": f"{binaries}{os.pathsep}{os.environ.get('PATH', '')}",
            "FLWR_HOME": str(folder / "home"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.05",
            **(environment or {}),
        }

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        (self.folder / "home").mkdir(parents=True, exist_ok=True)
        make_certificates(self.folder)
        (self.folder / "home" / "config.toml").write_text(
            f'[superlink]\ndefault = "here"\n\n[superlink.here]\naddress = "{self.address}"\n'
            f'root-certificates = "{self.folder / "ca.crt"}"\n'
        )
        try:
            self.start_superlink()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.stop()

    def start_superlink(self) -> None:
        """Start the SuperLink and wait until it answers."""
        names = {"ssl-ca-certfile": "ca.crt", "ssl-certfile": "server.pem", "ssl-keyfile": "server.key"}
        files = [word for option, name in names.items() for word in (f"--{option}", str(self.folder / name))]
        self._start(
            "superlink",
            *("flower-superlink", *files, "--enable-supernode-auth", "--disable-runtime-dependency-installation"),
            *("--host", "127.0.0.1", "--port", str(self.port)),
        )
        context = ssl.create_default_context(cafile=str(self.folder / "ca.crt"))

        def answers() -> bool:
            with suppress(OSError):
                return bool(urllib.request.urlopen(f"https://{self.address}/health", timeout=1, context=context).status == 200)
            return False

        self._wait("superlink", answers)

    def register(self, name: str) -> None:
        """Make a node's key and register it at the SuperLink."""
        make_node_key(self.folder / name)
        self.flwr("supernode", "register", str(self.folder / f"{name}.pub"), "here")

    def start_node(self, name: str, config: Mapping[str, str], authority: str = "ca.crt") -> None:
        """Start a SuperNode.

        Args:
            name: of its key, its log and its states.
            config: its ``--node-config``.
            authority: the file of the certificate authority that it trusts.
        """
        words = " ".join(f'{option}="{value}"' for option, value in config.items())
        self._start(
            name,
            *("flower-supernode", "--root-certificates", str(self.folder / authority), "--superlink", self.address),
            *("--auth-supernode-private-key", str(self.folder / name), "--node-config", words, "--max-retries", "1"),
            *("--host", "127.0.0.1", "--port", str(free_port())),
        )

    def wait_for_node(self, name: str) -> None:
        """Wait until a SuperNode is connected."""
        self._wait(name, lambda: "SuperNode ID" in self.log(name))

    def run(self, app: Path, options: Mapping[str, Any]) -> int:
        """Submit an app, and return the number of its run."""
        words = " ".join(f"{name}={json.dumps(value)}" for name, value in options.items())
        return int(self._answer("run", str(app), "here", "--run-config", words)["run-id"])

    def status(self, run: int) -> tuple[str, dict[str, Any]]:
        """The status of a run, such as ``running`` or ``finished:completed``, and Flower's record of it."""
        records = self._answer("list", "here", "--run-id", str(run))["runs"]
        record = next(each for each in records if int(each["run-id"]) == run)
        return record["status"], record

    def follow(self, run: int) -> str:
        """Print the output of a run's server until it has ended. Returns the run's status."""
        command = ["flwr", "log", str(run), "here", "--stream"]
        with subprocess.Popen(command, env=self.environment, cwd=self.folder, start_new_session=True) as process:
            try:
                while not (status := self.status(run)[0]).startswith("finished"):
                    time.sleep(1.0)
                with suppress(subprocess.TimeoutExpired):
                    process.wait(END_SECONDS)
            finally:
                _signal(process, signal.SIGTERM)
        return status

    def flwr(self, *words: str) -> str:
        """The output of a command of Flower's."""
        done = subprocess.run(["flwr", *words], env=self.environment, capture_output=True, text=True, cwd=self.folder)
        if done.returncode:
            lines = (done.stdout + done.stderr).split("\n")
            raise ValueError(f"flwr {words[0]} failed: {' '.join(filter(None, map(str.strip, lines)))[-400:]}")
        return done.stdout

    def _answer(self, *words: str) -> dict[str, Any]:
        """The answer of a command of Flower's, which may tell of an error although it exits with 0."""
        answer: dict[str, Any] = json.loads(self.flwr(*words, "--format", "json"))
        if not answer["success"]:
            raise ValueError(f"flwr {words[0]} failed: {' '.join(answer['error-message'].split())[-400:]}")
        return answer

    def log(self, name: str) -> str:
        """The output of a process until now."""
        path = self.folder / f"{name}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def kill(self, name: str) -> None:
        """Kill a process and all processes that it has started."""
        _signal(self.processes.pop(name), signal.SIGKILL)

    def stop(self) -> None:
        """End all processes, SuperNodes first."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            for process in reversed(self.processes.values()):
                _signal(process, number)
            deadline = time.monotonic() + END_SECONDS
            for process in self.processes.values():
                with suppress(subprocess.TimeoutExpired):
                    process.wait(max(0.0, deadline - time.monotonic()))
        self.processes.clear()

    def _start(self, name: str, command: str, *words: str) -> None:
        if shutil.which(command, path=self.environment["PATH"]) is None:
            raise ValueError(f"found no program {command}: pip install 'flcog[flower]'")
        with (self.folder / f"{name}.log").open("w") as log:
            self.processes[name] = subprocess.Popen(
                [command, *words],
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=_end_with_parent,
            )

    def _wait(self, name: str, ready: Callable[[], bool]) -> None:
        deadline = time.monotonic() + READY_SECONDS
        while not ready():
            if self.processes[name].poll() is not None or time.monotonic() > deadline:
                raise ValueError(f"the {name} does not start: {reason_in(self.log(name))}")
            time.sleep(0.1)


def reason_in(log: str) -> str:
    """The reason with which a program of Flower's has ended, in one line.

    >>> reason_in("\\x1b[91mERROR \\x1b[0m:  Exit Code: 302\\nUnable to parse\\nthe key.\\n\\nFor more information, visit: <...>")
    'Exit Code: 302 Unable to parse the key.'
    """
    text = re.sub(r"\x1b\[\d+m", "", log)
    found = re.search(r"Exit Code: .*?(?=\n\s*\n|For more|$)", text, re.S)
    return " ".join(found[0].split()) if found else next(filter(None, reversed(text.split("\n"))), "its log is empty")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _end_with_parent() -> None:
    """Let Linux end this process when its parent dies in any way."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def _signal(process: subprocess.Popen[Any], number: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, number)
