"""Waiting for what was begun, so that a clock counts all of it."""

from typing import Any

import torch


def wait_for_device(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def synchronise(trainer: Any) -> None:
    """Wait for the device and for the other processes."""
    wait_for_device(trainer.fabric.device)
    trainer.fabric.barrier()
