"""One client at a time, or one on each thread, whose local steps are compiled."""

import torch

from flcog.apply import ModelFunction
from flcog.client.executor import Assignment
from flcog.client.work import ClientWork
from flcog.execute.compiled import CompiledSteps
from flcog.execute.vmap import VmapExecutor


class CompiledLoop(VmapExecutor):
    """The loop with compiled steps, of which one program serves all clients.

    Args:
        model: the client's model.
        optimizer: the module's own.
        steps: runs compiled steps, of one client.
        seeds_torch: whether each client gets a seed of its own in torch's global streams, from which users' modules may draw.
    """

    def __init__(
        self, model: ModelFunction, optimizer: torch.optim.Optimizer, steps: CompiledSteps, seeds_torch: bool = True
    ) -> None:
        super().__init__(model, optimizer, 1, steps=steps, seeds_torch=seeds_torch)
        self.name = "loop"

    def _where(self, assignment: Assignment, works: list[ClientWork]) -> str:
        return f"in client {works[0].client}, round {assignment.round + 1}; trainer.compile=false names the local step"
