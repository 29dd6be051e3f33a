"""Ends a run of several processes when any of them dies. Otherwise the others would wait forever or blame the network.

The first process watches those that it has started. These end with it: see :mod:`flcog.core.child_processes`.
"""

import atexit
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from lightning.fabric import Fabric
from lightning.fabric.plugins.environments import ClusterEnvironment, LightningEnvironment, SLURMEnvironment
from lightning.fabric.strategies.launchers import subprocess_script

from flcog.core import child_processes
from flcog.core.output import say

PATIENCE = 5.0
"""Seconds for a process to close its files after an error, before another ends it."""

HAS_SAID_WHY = (1, 2, 130)
"""Exit codes that follow a message: Python's traceback, flcog's error line, and Ctrl-C."""


class ProcessDied(ValueError):
    """Another process of this run has died."""


class _Children(threading.Thread):
    """Watches the processes that this one has started, and ends this one after any of them has failed."""

    def __init__(self, processes: Sequence[subprocess.Popen[Any]]) -> None:
        super().__init__(name="flcog-processes", daemon=True)
        self.processes, self.is_awaited = list(processes), threading.Event()

    def run(self) -> None:
        while not (failed := [(number, code) for number, child in enumerate(self.processes, 1) if (code := child.poll())]):
            time.sleep(0.2)
        self.is_awaited.wait(PATIENCE)
        self.kill()
        number, code = failed[0]
        if code not in HAS_SAID_WHY:
            how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
            say(f"flcog: error: process {number} died ({how}): {_advice()}")
        os._exit(code if code in HAS_SAID_WHY else 2)

    def kill(self) -> None:
        """Kill the processes. They may wait for a collective that will never complete, and handle no other signal."""
        processes, self.processes = self.processes, []
        for child in processes:
            child.kill()


_children: _Children | None = None
_advice: Callable[[], str] = str


def launch(fabric: Fabric, num_nodes: int) -> None:
    """Start the other processes, or connect to processes that another program has started.

    Lightning gives each an equal share of this machine's cores, unless ``OMP_NUM_THREADS`` says otherwise.
    """
    check_number(fabric._connector.cluster_environment, getattr(fabric.strategy, "num_processes", 1) * num_nodes)
    child_processes.end_with_parent()
    lightnings = subprocess_script._launch_process_observer  # kills this process without a message
    subprocess_script._launch_process_observer = _watch
    try:
        with child_processes.starting_processes():
            fabric.launch()
    finally:
        subprocess_script._launch_process_observer = lightnings
    if fabric.world_size > 1:
        atexit.register(_disconnect)


def _watch(child_processes: Sequence[subprocess.Popen[Any]]) -> None:
    global _children
    _children = _Children(child_processes)
    _children.start()


def _disconnect() -> None:
    """End the network's threads before Python ends. PyTorch may abort a process that ends while such a thread runs."""
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


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
def watched(advice: Callable[[], str]) -> Iterator[None]:
    """Let the processes end together after an error, of which one process speaks. ``advice`` tells the user how to resume."""
    global _advice
    _advice = advice
    try:
        yield
    except BaseException as error:
        atexit.unregister(_disconnect)  # it would wait for processes that wait for this one
        if not isinstance(error, Exception) or (cause := _cause(error)) is error:
            raise
        raise cause from None


def _cause(error: Exception) -> Exception:
    """The error, or the death of another process if that made a collective fail. Meanwhile the first process may end this one."""
    of_network = isinstance(error, torch.distributed.DistError) or (isinstance(error, RuntimeError) and "gloo" in str(error))
    if _children is not None and of_network:
        _children.is_awaited.set()
        _children.join(PATIENCE)
    elif _children is not None:
        _children.kill()
    elif child_processes.starter is not None and os.environ.get("LOCAL_RANK", "0") != "0":
        deadline = time.monotonic() + PATIENCE
        while os.getppid() == child_processes.starter and time.monotonic() < deadline:
            time.sleep(0.05)
        if os.getppid() != child_processes.starter:
            if os.environ["LOCAL_RANK"] == "1":
                say(f"flcog: error: process 0 died: {_advice()}")
            os._exit(2)
    return ProcessDied(f"another process died or cannot be reached: {_advice()}") if of_network else error
