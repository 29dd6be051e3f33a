"""Ends a run of several processes when any of them dies. Otherwise the others would wait forever or blame the network."""

import atexit
import functools
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from lightning.fabric import Fabric
from lightning.fabric.plugins.environments import ClusterEnvironment, LightningEnvironment, SLURMEnvironment
from lightning.fabric.strategies.launchers import subprocess_script

from flcog.core import child_processes as processes
from flcog.core import early_processes
from flcog.core.output import say

PATIENCE = 5.0
"""Seconds for the network to report a dead process to the processes that wait for it."""

WITHOUT_A_WORD = 69
"""Exit code of a process that ends without a message because another died. Only one process prints the message."""


class ProcessDied(ValueError):
    """Another process of this run has died."""


class Death(NamedTuple):
    """A process that has ended, with its exit code: negative for a signal, None if only its parent knows it."""

    process: int
    code: int | None

    @property
    def has_said_why(self) -> bool:
        """Whether the exit code implies a message: 1 follows Python's traceback, 2 flcog's error line, and 130 Ctrl-C."""
        return self.code in (1, 2, 130)

    def __str__(self) -> str:
        if self.code is None:
            return f"process {self.process} died"
        how = f"killed by {signal.Signals(-self.code).name}" if self.code < 0 else f"exit code {self.code}"
        return f"process {self.process} died ({how})"


class _Relatives:
    """The processes that this process can watch: the first process watches its children, the others watch their parent."""

    def __init__(self) -> None:
        self.children: list[subprocess.Popen[Any]] = []
        self.parent: int | None = None
        self.idle = threading.Event()
        """Set while this process does not train, so that it does not wait for others."""
        self.idle.set()
        self.advice: Callable[[], str] = str
        self.has_failed = False
        """Whether this process left a run by an error. Another process may then wait for it in a collective."""
        self._has_spoken = False

    def deaths(self) -> list[Death]:
        """Return the processes that have ended. Processes that ended by themselves come first."""
        codes = [(rank, child.poll()) for rank, child in enumerate(self.children, 1)]
        dead = sorted((Death(rank, code) for rank, code in codes if code is not None), key=lambda d: d.code == WITHOUT_A_WORD)
        return dead + ([Death(0, None)] if self.parent is not None and os.getppid() != self.parent else [])

    def verdict(self, dead: list[Death]) -> ProcessDied | SystemExit:
        """Choose how this process ends. One process prints the reason, the others print nothing."""
        self.end_children()
        if self.parent is not None and (not dead or os.environ.get("LOCAL_RANK") != "1"):
            return SystemExit(WITHOUT_A_WORD)
        if dead and dead[0].has_said_why:
            return SystemExit(dead[0].code)
        return ProcessDied(f"{dead[0] if dead else 'another process died or cannot be reached'}: {self.advice()}")

    def let_one_speak(self) -> None:
        """End the others, or wait to be ended by the first process, which fails for the same reason and prints the error.

        If the first process continues, only this process has failed, and it prints its error.
        """
        self.end_children()
        deadline = time.monotonic() + (0 if self._has_spoken else PATIENCE)
        while self.parent is not None and os.getppid() == self.parent and time.monotonic() < deadline:
            time.sleep(0.05)
        self._has_spoken = True

    def end_children(self) -> None:
        """Kill the remaining children. They wait for a collective that will never complete, and handle no other signal."""
        for child in self.children:
            if child.poll() is None:
                child.kill()

    def watch(self, child_processes: Sequence[subprocess.Popen[Any]] = ()) -> None:
        """End this process if the network does not, for example in a long computation or before the processes are connected."""
        self.children = list(child_processes)
        threading.Thread(target=self._watch, name="flcog-processes", daemon=True).start()

    def _watch(self) -> None:
        while True:
            time.sleep(0.5)
            if not self.idle.is_set() and any(death.code != 0 for death in self.deaths()) and not self.idle.wait(PATIENCE):
                verdict = self.verdict(self.deaths())
                if isinstance(verdict, ProcessDied):
                    say(f"flcog: error: {verdict}")
                os._exit(2 if isinstance(verdict, ProcessDied) else int(str(verdict.code)))


_relatives = _Relatives()


def launch(fabric: Fabric, num_nodes: int, per_device: int = 1) -> None:
    """Start the other processes, ``per_device`` on each device, or connect to processes that another program has started."""
    num_processes = getattr(fabric.strategy, "num_processes", 1)
    check_number(fabric._connector.cluster_environment, num_processes, num_nodes, per_device)
    processes.end_with_parent()
    # The first process's parent may be a comparison.
    if processes.starter is not None and os.environ.get("LOCAL_RANK", "0") != "0":
        _relatives.parent = processes.starter
        _relatives.watch()
    # Lightning's own observer kills this process without a message.
    lightnings = subprocess_script._launch_process_observer, subprocess_script.subprocess
    subprocess_script._launch_process_observer = _relatives.watch
    subprocess_script.subprocess = SimpleNamespace(Popen=early_processes.start)  # type: ignore[assignment]
    try:
        with processes.starting_processes():
            fabric.launch()
    finally:
        subprocess_script._launch_process_observer, subprocess_script.subprocess = lightnings
    if _relatives.children or _relatives.parent is not None:
        sys.excepthook = functools.partial(_uncaught, sys.excepthook)
    if fabric.world_size > 1:
        atexit.register(_disconnect)


def _disconnect() -> None:
    """End the network's threads before Python ends. PyTorch may abort a process that ends while such a thread runs.

    Lightning does so for NCCL. After an error the threads may wait for another process, and ending them would wait too.
    """
    if torch.distributed.is_initialized() and not _relatives.has_failed:
        torch.distributed.destroy_process_group()


def _uncaught(show: Callable[..., None], kind: type[BaseException], error: BaseException, *traceback: Any) -> None:
    """Show an error that ends a script once, instead of once for each process."""
    if isinstance(error, Exception):
        _relatives.let_one_speak()
    show(kind, error, *traceback)


def check_number(environment: ClusterEnvironment | None, num_processes: int, num_nodes: int, per_device: int = 1) -> None:
    """Refuse to train if another program has started a different number of processes than the user requested."""
    if environment is None or isinstance(environment, LightningEnvironment):
        return
    asked, started = num_processes * num_nodes, environment.world_size()
    slurm = isinstance(environment, SLURMEnvironment)
    if asked == started or (slurm and asked < started and "SLURM_STEP_NUM_TASKS" not in os.environ):
        return  # a batch script may use a single task, without srun
    who = f"SLURM started {started} (SLURM_NTASKS)" if slurm else f"{type(environment).__name__} has {started}"
    start = f"srun --nodes={num_nodes} --ntasks-per-node={num_processes}" if slurm else f"--nproc-per-node={num_processes}"
    own = "; with SLURM_JOB_NAME=bash flcog starts its own" if slurm else ""
    shared = f", trainer.processes_per_device={per_device}" if per_device > 1 else ""
    raise ValueError(
        f"trainer.devices={num_processes // per_device}{shared} on trainer.num_nodes={num_nodes} asks for {asked} "
        f"process{'es' * (asked > 1)}, but {who}: start as many ({start}), or set trainer.devices and trainer.num_nodes to "
        f"match{own}"
    )


@contextmanager
def fails_for_all() -> Iterator[None]:
    """Run a command so that its child processes end together with it, and a single process prints an error."""
    try:
        yield
    except Exception:
        _relatives.let_one_speak()
        raise
    except BaseException:
        _relatives.end_children()
        raise


@contextmanager
def watched(advice: Callable[[], str]) -> Iterator[None]:
    """Raise an error if a process dies while the processes depend on each other. ``advice`` tells the user how to resume."""
    _relatives.advice = advice
    _relatives.idle.clear()
    try:
        yield
    except BaseException as error:
        _relatives.has_failed = True
        cause = explain(error)
        if cause is error:
            raise
        raise cause from None
    finally:
        _relatives.idle.set()


def explain(error: BaseException) -> BaseException:
    """Return ``error``, or the death of a process if this made a collective fail."""
    _relatives.idle.set()
    distributed = isinstance(error, torch.distributed.DistError) or (isinstance(error, RuntimeError) and "gloo" in str(error))
    if not distributed:
        return error
    deadline, alone = time.monotonic() + PATIENCE, not _relatives.children and _relatives.parent is None
    while not (dead := _relatives.deaths()) and not alone and time.monotonic() < deadline:
        time.sleep(0.05)
    return _relatives.verdict(dead)
