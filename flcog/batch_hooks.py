"""Lightning's hooks that change a batch between the data set and the step: of the user's data module, or else of the module."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from flcog.core.lightning_packages import users_hooks

OF_A_BATCH = ("on_before_batch_transfer", "transfer_batch_to_device", "on_after_batch_transfer")
"""Hooks that change a batch, which modules and data modules have."""


class BatchHooks:
    """Calls the hooks that change a batch. As in Lightning, a data module's hook replaces the module's.

    Args:
        module: the client's module.
        datamodule: the user's data module.
    """

    def __init__(self, module: Any, datamodule: Any) -> None:
        self.datamodule = datamodule
        self._of_data = users_hooks(datamodule, OF_A_BATCH)
        self.exist = bool(self._of_data) or bool(users_hooks(module, OF_A_BATCH))
        """Whether the user has written such a hook."""

    def __call__(self, module: Any, batch: Any, device: torch.device, loader: int = 0) -> Any:
        """The batch after the hooks.

        Args:
            module: the client's module, or its copy in evaluation mode.
            batch: as the step would receive it without hooks.
            device: of the module.
            loader: the index of the batch's loader.
        """
        if not self.exist:
            return batch
        before, transfer, after = (getattr(self.datamodule if name in self._of_data else module, name) for name in OF_A_BATCH)
        return after(transfer(before(batch, loader), device, loader), loader)

    @contextmanager
    def show(self, trainer: Any) -> Iterator[None]:
        """Let the data module find this trainer as ``self.trainer``."""
        before, self.datamodule.trainer = self.datamodule.trainer, trainer
        try:
            yield
        finally:
            self.datamodule.trainer = before
