"""A real Slurm on this machine, with two virtual nodes and without accounting, for tests."""

import getpass
import os
import platform
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

from harness import TESTS
from two_processes import wait_for

FOLDER = "FLCOG_SLURM"
"""The environment variable with the folder of tests/queues/slurm_packages."""

CONFIGURATION = """
ClusterName=tests
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/none
CredType=cred/none
PluginDir={plugins}
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
JobAcctGatherType=jobacct_gather/none
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
ReturnToService=2
KillWait=20
NodeName=node[1-2] NodeHostname={host} NodeAddr=127.0.0.1 Port=[{ports[1]}-{ports[2]}] CPUs={cores} State=UNKNOWN
PartitionName=main Nodes=node[1-2] Default=YES MaxTime=INFINITE PriorityTier=1
PartitionName=urgent Nodes=node[1-2] MaxTime=INFINITE PriorityTier=2
"""


def reason_to_skip() -> str | None:
    """The reason why Slurm cannot be started here, or None if it can."""
    if os.environ.get(FOLDER) is None:
        return f"no Slurm: run tests/queues/slurm_packages FOLDER and set {FOLDER}=FOLDER"
    return None


PATIENCE = 600.0
"""The seconds that a command may take."""


class Cluster:
    """Slurm's controller and two nodes, as child processes.

    Args:
        folder: the folder for their state and logs.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.slurm = folder, Path(os.environ[FOLDER]).resolve()
        plugins = next(self.slurm.glob("usr/lib/*/slurm-wlm"))
        for name in ("state", "spool-node1", "spool-node2"):
            (folder / name).mkdir(parents=True)
        values = {"host": platform.node().split(".")[0], "user": getpass.getuser(), "cores": os.cpu_count(), "plugins": plugins}
        configuration = CONFIGURATION.format(folder=folder, ports=_free_ports(3), **values)
        (folder / "slurm.conf").write_text(configuration)
        programs = [str(Path(sys.executable).parent), *(str(self.slurm / "usr" / place) for place in ("bin", "sbin"))]
        self.environment = os.environ | {
            "PATH": os.pathsep.join([*programs, os.environ["PATH"]]),
            "LD_LIBRARY_PATH": f"{plugins}:{plugins.parent}",
            "SLURM_CONF": str(folder / "slurm.conf"),
            "PYTHONPATH": str(TESTS),
            "OMP_NUM_THREADS": "1",
            "MASTER_ADDR": "127.0.0.1",  # no name server knows the virtual nodes
        }
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self) -> None:
        self.start_controller()
        for node in ("node1", "node2"):
            self._start(node, "slurmd-wlm", "-N", node, "-d", str(self.slurm / "usr/sbin/slurmstepd-wlm"))
        wait_for(lambda: self.call("sinfo", "-h", "-o", "%D %T").strip() == "2 idle")

    def start_controller(self) -> None:
        self._start("controller", "slurmctld-wlm")
        wait_for(lambda: self.run("squeue").returncode == 0)

    def stop(self) -> None:
        self.run("scancel", "--me")
        wait_for(lambda: not self.call("squeue", "-h"))
        for name in list(self._processes):
            self.end(name)

    def end(self, name: str) -> None:
        """End the process of the controller or of a node."""
        process = self._processes.pop(name)
        process.send_signal(signal.SIGTERM)
        process.wait(60)

    def run(self, *words: str, **options: Any) -> subprocess.CompletedProcess[str]:
        given: dict[str, Any] = {"env": self.environment, "capture_output": True, "text": True, "timeout": PATIENCE, **options}
        return subprocess.run(words, **given)

    def call(self, *words: str, **options: Any) -> str:
        """The output of a program that succeeds."""
        done = self.run(*words, **options)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def submit(self, script: Path, *options: str) -> str:
        return self.call("sbatch", "--parsable", *options, str(script)).strip()

    def states(self) -> dict[str, str]:
        """The states of the jobs in the queue by job number. Jobs that Slurm delays after a requeue are allowed to start now."""
        states = {}
        for line in self.call("squeue", "-h", "-o", "%i %T %r").splitlines():
            number, states[number], reason = line.split(maxsplit=2)
            if reason == "BeginTime":
                self.run("scontrol", "update", f"jobid={number}", "StartTime=now")
        return states

    def preempt_all(self) -> None:
        """Preempt all jobs on both nodes with an urgent job that ends at once."""
        script = self.folder / "urgent.sh"
        script.write_text("#!/bin/sh\ntrue\n")
        urgent = self.submit(script, "--partition=urgent", "--nodes=2", "--exclusive", "--output=/dev/null")
        wait_for(lambda: urgent not in self.states())

    def _start(self, name: str, *words: str) -> None:
        program = shutil.which(words[0], path=self.environment["PATH"])
        assert program is not None, f"no {words[0]} in {self.slurm}"
        with (self.folder / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                [program, "-D", *words[1:]], env=self.environment, stdout=log, stderr=log, start_new_session=True
            )


def _free_ports(count: int) -> list[int]:
    """Consecutive numbers of free ports."""
    for first in range(17100 + os.getpid() % 500 * 3, 20000, count):
        try:
            for port in range(first, first + count):
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", port))
        except OSError:
            continue
        return list(range(first, first + count))
    raise RuntimeError("no free ports")
