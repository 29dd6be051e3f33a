"""Starts the processes of a run, and says so if a collective operation fails because one of them has died.

If a process fails that Lightning's launcher has started, the launcher ends all. Started processes also end with the first process: see
:mod:`flcog.core.child_processes`.
"""

import atexit
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from lightning.fabric import Fabric
from lightning.fabric.plugins.environments import ClusterEnvironment, LightningEnvironment, SLURMEnvironment

from flcog.core import child_processes


def launch(fabric: Fabric, num_nodes: int) -> None:
    """Start the other processes, or connect to processes that another program has started.

    Lightning gives each an equal share of this machine's cores, unless ``OMP_NUM_THREADS`` says otherwise.
    """
    check_number(fabric._connector.cluster_environment, getattr(fabric.strategy, "num_processes", 1) * num_nodes)
    child_processes.end_with_parent()
    with child_processes.starting_processes():
        fabric.launch()
    if fabric.world_size > 1:
        atexit.register(_disconnect)


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
    """Explain a collective operation that fails because of another process. ``advice`` tells the user how to resume."""
    try:
        yield
    except BaseException as error:
        atexit.unregister(_disconnect)  # it would wait for processes that wait for this one
        if isinstance(error, torch.distributed.DistError) or (isinstance(error, RuntimeError) and "gloo" in str(error)):
            raise ValueError(f"another process died or cannot be reached: {advice()}") from None
        raise
