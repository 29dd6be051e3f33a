"""Make Lightning's Fabric from the trainer's arguments, and start its processes."""

import os

import torch
from lightning.fabric import Fabric
from lightning.fabric.plugins.environments import LightningEnvironment
from lightning.fabric.strategies import DDPStrategy
from lightning.fabric.utilities.exceptions import MisconfigurationException

from flcog.core import checks
from flcog.core.processes import Processes

STARTED_BY_OTHERS = (
    *("LOCAL_RANK", "SLURM_NTASKS", "TORCHELASTIC_RUN_ID", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "JSM_NAMESPACE_SIZE", "RANK"),
)
"""Environment variables of programs that start all processes of a run themselves."""


class SharedDevices(DDPStrategy):
    """Several processes on each device. They communicate through gloo, since NCCL refuses two processes on one GPU."""

    def __init__(self, processes_per_device: int) -> None:
        super().__init__(process_group_backend="gloo")
        self.processes_per_device = processes_per_device

    def __str__(self) -> str:
        return f"{self.processes_per_device} processes per device"

    @property
    def num_processes(self) -> int:
        return super().num_processes * self.processes_per_device

    @property
    def root_device(self) -> torch.device:
        """Neighbouring ranks get different devices, so that a round of few clients uses all of them."""
        assert self.parallel_devices is not None
        return self.parallel_devices[self.local_rank % len(self.parallel_devices)]


def as_torchrun_started(devices: int | str, num_nodes: int, processes_per_device: int = 1) -> tuple[int | str, int]:
    """The number of devices on each node, and of nodes. For ``auto`` they follow from torchrun's processes, which a restart may change."""
    if devices != "auto" or "TORCHELASTIC_RUN_ID" not in os.environ:
        return devices, num_nodes
    here, everywhere = int(os.environ["LOCAL_WORLD_SIZE"]), int(os.environ["WORLD_SIZE"])
    return max(1, here // processes_per_device), everywhere // here


def make_fabric(
    accelerator: str,
    strategy: str,
    devices: int | str,
    num_nodes: int,
    processes_per_device: int = 1,
) -> Fabric:
    """Make a Fabric of independent processes: no model is wrapped in DDP, and only sums and the server's step are communicated."""
    checks.whole(None, 1, processes_per_device=processes_per_device)
    try:
        return Fabric(
            accelerator=accelerator,
            strategy=strategy if processes_per_device == 1 else SharedDevices(processes_per_device),
            devices=devices,
            num_nodes=num_nodes,
            plugins=None if os.environ.keys() & STARTED_BY_OTHERS else LightningEnvironment(),
        )
    # TypeError: devices of the wrong type; ModuleNotFoundError: the accelerator's package is missing.
    except (MisconfigurationException, ValueError, RuntimeError, TypeError, ModuleNotFoundError) as error:
        raise ValueError(
            f"accelerator={accelerator}, devices={devices}: {str(error).strip().splitlines()[0]} Set trainer.accelerator (cpu, cuda, "
            "mps, or auto) and trainer.devices to devices of this machine"
        ) from error


def processes_of(fabric: Fabric, together: bool = False) -> Processes:
    """Return this process's place among the run's processes, which divide the clients or train each client together."""
    if together:
        return Processes(device=fabric.device, replica=fabric.global_rank, replicas=fabric.world_size)
    per_device = fabric.strategy.processes_per_device if isinstance(fabric.strategy, SharedDevices) else 1
    return Processes(fabric.global_rank, fabric.world_size, fabric.device, per_device)


def num_cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
