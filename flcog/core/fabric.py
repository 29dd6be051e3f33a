"""Lightning Fabric: made from a trainer's arguments, and its processes started."""

import os
from typing import Any

import torch
from lightning.fabric import Fabric
from lightning.fabric.utilities.exceptions import MisconfigurationException

from flcog.core import lost_processes
from flcog.core.processes import Processes


def make_fabric(
    accelerator: str, strategy: str, devices: int | str, num_nodes: int, precision: Any, callbacks: list[Any]
) -> Fabric:
    """Fabric with processes that stay independent: nothing is wrapped in DDP, only sums and the server's step travel."""
    try:
        return Fabric(
            accelerator=accelerator,
            strategy=strategy,
            devices=devices,
            num_nodes=num_nodes,
            precision=precision,
            callbacks=callbacks,
        )
    # TypeError: devices of the wrong kind; ModuleNotFoundError: an accelerator's own package.
    except (MisconfigurationException, ValueError, RuntimeError, TypeError, ModuleNotFoundError) as error:
        raise ValueError(
            f"accelerator={accelerator}, devices={devices}: {str(error).strip().splitlines()[0]} Set trainer.accelerator (cpu, cuda, "
            "mps, or auto) and trainer.devices to what this machine has"
        ) from error


def launch(fabric: Fabric, num_nodes: int) -> None:
    """Start the processes, which share out this machine's cores."""
    lost_processes.launch(fabric, num_nodes)
    if fabric.world_size > 1 and fabric.device.type == "cpu":
        # Processes that each take every core slow one another down a hundredfold.
        here = int(os.environ.get("LOCAL_WORLD_SIZE", fabric.world_size // num_nodes))
        torch.set_num_threads(max(1, num_cores() // max(1, here)))


def processes_of(fabric: Fabric) -> Processes:
    """Who this process is among those of a run."""
    return Processes(fabric.global_rank, fabric.world_size, fabric.device)


def num_cores() -> int:
    """The cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
