"""Waits for computations to finish, so that a clock measures all of them."""

from typing import Any

import torch


def wait_for_device(device: torch.device) -> None:
    if device.type != "cpu":
        torch.get_device_module(device).synchronize()


def synchronise(trainer: Any) -> None:
    """Wait for the device and for the other processes."""
    wait_for_device(trainer.run.processes.device)
    trainer.fabric.barrier()
