"""Lightning's strategy in a process of flcog's: clients train alone, and decisions between rounds are shared."""

import os
from collections.abc import Callable
from typing import Any

import torch
from lightning.pytorch.strategies import SingleDeviceStrategy
from torch import Tensor

from flcog.core.processes import Processes


class ClientsAlone(SingleDeviceStrategy):
    """Trains clients on the device of this process, as if there were no others.

    Between rounds and in evaluations, collective operations join the processes of the run, which all call the same hooks. While a client
    trains, ``world_size`` is 1.
    """

    def __init__(self) -> None:
        super().__init__()
        self._processes = Processes()

    def join(self, processes: Processes) -> None:
        """Take this process's place among the run's."""
        self._processes, self._root_device = processes, processes.device
        self.global_rank, self.world_size = processes.rank, processes.count
        self.local_rank = int(os.environ.get("LOCAL_RANK", 0))

    @property
    def is_global_zero(self) -> bool:
        return self.global_rank == 0

    def reduce(self, tensor: Any, group: Any = None, reduce_op: Any = "mean") -> Any:
        if self.world_size == 1 or not isinstance(tensor, Tensor):
            return tensor
        name = str(getattr(reduce_op, "name", reduce_op) or "mean").lower()
        parts = torch.stack(self._processes.gather(tensor))
        reduced: dict[str, Callable[[int], Tensor]] = {"sum": parts.sum, "max": parts.amax, "min": parts.amin}
        return reduced.get(name, parts.float().mean)(0)

    def all_gather(self, tensor: Tensor, group: Any = None, sync_grads: bool = False) -> Tensor:
        return tensor if self.world_size == 1 else torch.stack(self._processes.gather(tensor))

    def barrier(self, *args: Any, **kwargs: Any) -> None:
        self.broadcast(None)

    def broadcast(self, obj: Any, src: int = 0) -> Any:
        return obj if self.world_size == 1 else self._processes.gather(obj)[src]

    def reduce_boolean_decision(self, decision: bool, all: bool = True) -> bool:
        if self.world_size == 1:
            return decision
        decisions = self._processes.gather(bool(decision))
        return False not in decisions if all else True in decisions
