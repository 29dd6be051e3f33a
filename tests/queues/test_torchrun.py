"""Runs that torchrun starts on one or two nodes: processes join, leave and die. A node is a torchrun agent on this machine."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness import TESTS
from two_processes import rounds_done, wait_for

from queues.runs import assert_same_model, config, fit, outcome, quickstart

pytestmark = pytest.mark.slow

AUTO = ["--trainer.devices", "auto", "--ckpt_path", "auto"]
ENVIRONMENT = os.environ | {
    "PYTHONPATH": str(TESTS),
    "OMP_NUM_THREADS": "1",
    "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",  # with a shared store, torch 2.15 waits forever for a node that joins later
}


class Agents:
    """torchrun agents. Each acts as a node with its own processes.

    Args:
        folder: the folder for their output.
        nodes: the option ``--nnodes``.
        command: the words after ``flcog``.
    """

    def __init__(self, folder: Path, nodes: str, command: list[str]) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            meeting = f"127.0.0.1:{probe.getsockname()[1]}"
        waits = "last_call_timeout=2,keep_alive_interval=1,keep_alive_max_attempt=3"
        self.folder, self.running = folder, list[subprocess.Popen[bytes]]()
        self._words = [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--nnodes",
            nodes,
            "--max-restarts",
            "3",
            "--rdzv-id",
            "test",
        ]
        self._words += ["--rdzv-backend", "c10d", "--rdzv-endpoint", meeting, "--rdzv-conf", waits]
        self._command = ["-m", "flcog", *command[1:]]

    def start(self, processes: int = 1, *options: str) -> subprocess.Popen[bytes]:
        words = [*self._words, "--nproc-per-node", str(processes), *options, *self._command]
        with self.output(len(self.running)).open("wb") as output:
            agent = subprocess.Popen(words, env=ENVIRONMENT, stdout=output, stderr=subprocess.STDOUT)
        self.running.append(agent)
        return agent

    def output(self, number: int) -> Path:
        return self.folder / f"agent{number}.txt"


@pytest.fixture
def ended() -> Iterator[list[subprocess.Popen[bytes]]]:
    """A list for agents. After the test, the agents that still run are killed with their processes."""
    agents: list[subprocess.Popen[bytes]] = []
    yield agents
    for agent in agents:
        if agent.poll() is None:
            kill_node(agent)


def workers(agent: subprocess.Popen[bytes]) -> list[int]:
    """The process ids of an agent's workers."""
    listed = subprocess.run(["ps", "-o", "pid=", "--ppid", str(agent.pid)], capture_output=True, text=True, check=False)
    return [int(line) for line in listed.stdout.split()]


def kill_node(agent: subprocess.Popen[bytes]) -> None:
    """Kill an agent with its processes, as if the machine were lost."""
    children = workers(agent)
    agent.kill()
    agent.wait()
    for child in children:
        os.kill(child, signal.SIGKILL)


def test_two_agents_equal_one_process(tmp_path: Path, ended: list[subprocess.Popen[bytes]]) -> None:
    subprocess.run([sys.executable, "-m", *quickstart(tmp_path / "one")], env=ENVIRONMENT, check=True, capture_output=True)
    agents = Agents(tmp_path, "2", quickstart(tmp_path / "two", "--trainer.num_nodes", "2"))
    ended += [agents.start(), agents.start()]
    assert [agent.wait(240) for agent in ended] == [0, 0], agents.output(0).read_text()
    assert_same_model(tmp_path / "one", tmp_path / "two")


@pytest.mark.parametrize("nodes", [1, 2])
def test_the_others_end_within_a_minute(nodes: int, tmp_path: Path, ended: list[subprocess.Popen[bytes]]) -> None:
    root = tmp_path / "runs"
    agents = Agents(tmp_path, str(nodes), fit(config(tmp_path, sleep=1.0), root, *AUTO))
    ended += [agents.start(2 // nodes, "--max-restarts", "0") for _ in range(nodes)]
    wait_for(lambda: rounds_done(root) >= 2)
    others = [child for agent in ended for child in workers(agent)]
    os.kill(others.pop(), signal.SIGKILL)
    killed = time.monotonic()
    wait_for(lambda: not any(Path(f"/proc/{other}").exists() for other in others), 60)
    assert time.monotonic() - killed < 60
    assert all(agent.wait(60) == 1 for agent in ended)


@pytest.mark.long
def test_a_run_continues_with_more_and_fewer_processes(tmp_path: Path, ended: list[subprocess.Popen[bytes]]) -> None:
    whole, root, rounds = tmp_path / "whole", tmp_path / "runs", ["--trainer.rounds", "30"]
    path = config(tmp_path)
    subprocess.run([sys.executable, "-m", *fit(path, whole, *rounds)], env=ENVIRONMENT, check=True, capture_output=True)
    agents = Agents(tmp_path, "1:2", fit(config(tmp_path, sleep=1.0), root, *AUTO, *rounds))
    ended.append(agents.start())
    wait_for(lambda: rounds_done(root) >= 2)
    ended.append(agents.start())
    output = agents.output(0)
    wait_for(lambda: "2 processes on cpu" in output.read_text())
    before = rounds_done(root)
    wait_for(lambda: rounds_done(root) >= before + 2)
    kill_node(ended[1])
    assert ended[0].wait(240) == 0, output.read_text()
    assert re.findall(r"(\d) process(?:es)? on cpu", output.read_text()) == ["1", "2", "1"]
    (rows, params), (same_rows, same_params) = outcome(whole), outcome(root)
    assert len(rows) == 30 and [row["round"] for row in same_rows] == [row["round"] for row in rows]
    for name, value in params.items():
        assert same_params[name].numpy() == pytest.approx(value.numpy(), rel=1e-12, abs=1e-12)
