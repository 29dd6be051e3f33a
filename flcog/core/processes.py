"""The processes that train a run's clients, and their collective operations."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils import _pytree as pytree


class _FromGPU(NamedTuple):
    """A tensor from its process's GPU. Unpickling would put it on the same GPU, which may be another process's."""

    tensor: Tensor


@dataclass(frozen=True)
class Processes:
    """This process's place among a run's processes. With a single process, every method returns its argument at no cost.

    Args:
        rank: this process's number, from 0. The first process prints and writes.
        count: the number of processes.
        device: the device of this process.
        per_device: the number of processes that share this device and its memory.
        replica, replicas: this process's number among those that train each client together. They all hold the whole run.
    """

    rank: int = 0
    count: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    per_device: int = 1
    replica: int = 0
    replicas: int = 1

    @property
    def is_first(self) -> bool:
        """Whether this process prints and writes files."""
        return self.rank == self.replica == 0

    @property
    def together(self) -> int:
        """The number of processes that must make the same decisions."""
        return self.count * self.replicas

    @property
    def accelerator(self) -> str | None:
        """The name of this process's accelerator, such as NVIDIA H100 80GB HBM3; None on a CPU."""
        if self.device.type == "cpu":
            return None
        return torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else self.device.type

    def total(self, tensor: Tensor) -> Tensor:
        """Sum a tensor over the processes, in place."""
        if self.count > 1:
            torch.distributed.all_reduce(tensor)
        return tensor

    def largest(self, number: int) -> int:
        """The largest of the processes' numbers."""
        if self.together == 1:
            return number
        tensor = torch.tensor(number, device=self.device)
        torch.distributed.all_reduce(tensor, torch.distributed.ReduceOp.MAX)
        return int(tensor)

    def agree(self, value: Any) -> Any:
        """The first process's value, on every process."""
        if self.together == 1:
            return value
        box = [value]
        torch.distributed.broadcast_object_list(box, 0)
        return box[0]

    def decide(self, call: Callable[[], Any]) -> Any:
        """Call a function in the first process. Its result or its ``ValueError`` comes to all processes."""
        outcome, refused = None, None
        if self.is_first:
            try:
                outcome = call()
            except ValueError as error:
                refused = str(error)
        outcome, refused = self.agree((outcome, refused))
        if refused is not None:
            raise ValueError(refused)
        return outcome

    def gather(self, value: Any) -> list[Any]:
        """The values of all processes, in order, on every process. Tensors from another process's GPU arrive on this one's."""
        if self.count == 1:
            return [value]
        values: list[Any] = [None] * self.count
        if self.device.type == "cpu":
            torch.distributed.all_gather_object(values, value)
            return values

        def packed(tensor: Tensor) -> Tensor | _FromGPU:
            return _FromGPU(tensor.cpu()) if tensor.device.type == self.device.type else tensor

        def unpacked(sent: _FromGPU) -> Tensor:
            return sent.tensor.to(self.device)

        torch.distributed.all_gather_object(values, pytree.tree_map_only(Tensor, packed, value))
        return pytree.tree_map_only(_FromGPU, unpacked, values, is_leaf=lambda part: isinstance(part, _FromGPU))

    def share_first(self, tree: Any) -> Any:
        """Send the first process's tensors to all processes, in one message for each dtype."""
        if self.together == 1:
            return tree
        leaves, spec = pytree.tree_flatten(tree)
        received: list[Any] = list(leaves)
        for dtype in {leaf.dtype: None for leaf in leaves}:
            places = [i for i, leaf in enumerate(leaves) if leaf.dtype == dtype]
            vector = torch.cat([leaves[i].detach().reshape(-1).to(self.device) for i in places])
            torch.distributed.broadcast(vector, 0)
            for i, part in zip(places, vector.split([leaves[i].numel() for i in places]), strict=True):
                received[i] = part.view(leaves[i].shape).to(leaves[i].device, copy=True)  # not a view, which would keep them all
        return pytree.tree_unflatten(received, spec)

    def overwrite(self, tensors: Any) -> None:
        """Overwrite tensors in place with the first process's tensors."""
        if self.together > 1:
            for tensor in tensors:
                torch.distributed.broadcast(tensor, 0)
