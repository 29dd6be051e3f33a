"""Ends a run of several processes when any of them dies. Otherwise the others would wait forever or blame the network.

The first process watches those that it has started. These end with it: see :mod:`flcog.core.child_processes`.
"""

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
from typing import Any

import torch
from lightning.fabric import Fabric
from lightning.fabric.plugins.environments import ClusterEnvironment, LightningEnvironment, SLURMEnvironment
from lightning.fabric.strategies.launchers import subprocess_script

from flcog.core import child_processes
from flcog.core.output import say

PATIENCE = 5.0
"""Seconds for the network to report a dead process to the processes that wait for it."""

WITHOUT_A_WORD = 69
"""Exit code of a process that ends without a message because another died. Only one process prints the message."""

HAS_SAID_WHY = (1, 2, 130)
"""Exit codes that follow a message: Python's traceback, flcog's error line, and Ctrl-C."""


class ProcessDied(ValueError):
    """Another process of this run has died."""


class _Relatives:
    """The processes whose end this process can see: the first process sees its children's, the others their parent's."""

    def __init__(self) -> None:
        self.children: list[subprocess.Popen[Any]] = []
        self.parent: int | None = None
        self.idle = threading.Event()
        """Set while this process does not train, so that it does not wait for others."""
        self.idle.set()
        self.advice: Callable[[], str] = str
        self.has_failed = False
        """Whether this process left a run by an error. Another process may then wait for it in a collective."""

    def deaths(self) -> list[tuple[int, int | None]]:
        """The processes that have ended, with their exit codes. Those that ended by themselves come first."""
        codes = [(process, child.poll()) for process, child in enumerate(self.children, 1)]
        dead = sorted((each for each in codes if each[1] is not None), key=lambda each: each[1] == WITHOUT_A_WORD)
        return dead + ([(0, None)] if self.has_no_parent else [])

    @property
    def has_no_parent(self) -> bool:
        return self.parent is not None and os.getppid() != self.parent

    def verdict(self, dead: Sequence[tuple[int, int | None]]) -> ProcessDied | SystemExit:
        """Choose how this process ends. One process prints the reason, the others print nothing."""
        self.end_children()
        if self.parent is not None and (not dead or os.environ.get("LOCAL_RANK") != "1"):
            return SystemExit(WITHOUT_A_WORD)
        if not dead:
            return ProcessDied(f"another process died or cannot be reached: {self.advice()}")
        process, code = dead[0]
        if code in HAS_SAID_WHY:
            return SystemExit(code)
        how = "" if code is None else f" (killed by {signal.Signals(-code).name})" if code < 0 else f" (exit code {code})"
        return ProcessDied(f"process {process} died{how}: {self.advice()}")

    def let_one_speak(self) -> None:
        """End the others, or wait to be ended by the first process, which fails for the same reason and prints the error.

        If the first process continues, only this process has failed, and it prints its error.
        """
        self.end_children()
        deadline = time.monotonic() + PATIENCE
        while self.parent is not None and not self.has_no_parent and time.monotonic() < deadline:
            time.sleep(0.05)

    def end_children(self) -> None:
        """Kill the remaining children. They wait for a collective that will never complete, and handle no other signal."""
        for child in self.children:
            if child.poll() is None:
                child.kill()

    def watch(self, child_processes: Sequence[subprocess.Popen[Any]]) -> None:
        """End this process if the network does not, for example in a long computation or before the processes are connected."""
        self.children = list(child_processes)
        threading.Thread(target=self._watch, name="flcog-processes", daemon=True).start()

    def _watch(self) -> None:
        while True:
            time.sleep(0.5)
            if not self.idle.is_set() and any(code != 0 for _, code in self.deaths()) and not self.idle.wait(PATIENCE):
                verdict = self.verdict(self.deaths())
                if isinstance(verdict, ProcessDied):
                    say(f"flcog: error: {verdict}")
                os._exit(2 if isinstance(verdict, ProcessDied) else int(str(verdict.code)))


_relatives = _Relatives()


def launch(fabric: Fabric, num_nodes: int) -> None:
    """Start the other processes, or connect to processes that another program has started."""
    check_number(fabric._connector.cluster_environment, getattr(fabric.strategy, "num_processes", 1) * num_nodes)
    child_processes.end_with_parent()
    if os.environ.get("LOCAL_RANK", "0") != "0":  # the first process's parent may be a comparison
        _relatives.parent = child_processes.starter
    # Lightning's own observer kills this process without a message.
    lightnings = subprocess_script._launch_process_observer, subprocess_script.subprocess
    subprocess_script._launch_process_observer = _relatives.watch
    subprocess_script.subprocess = SimpleNamespace(Popen=child_processes.start)  # type: ignore[assignment]
    try:
        with child_processes.starting_processes():
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


def check_number(environment: ClusterEnvironment | None, asked: int) -> None:
    """Refuse to train if another program has started a different number of processes than the user requested."""
    if environment is None or isinstance(environment, LightningEnvironment) or environment.world_size() == asked:
        return
    started = environment.world_size()
    if isinstance(environment, SLURMEnvironment) and asked < started and "SLURM_STEP_NUM_TASKS" not in os.environ:
        return  # a batch script may use a single task, without srun
    raise ValueError(
        f"trainer.devices and trainer.num_nodes ask for {asked} process{'es' * (asked > 1)}, but {type(environment).__name__} has "
        f"{started}: start as many (srun --ntasks-per-node, torchrun --nproc-per-node), or set trainer.devices and trainer.num_nodes "
        "to match"
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
