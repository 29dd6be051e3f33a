"""The job of an executor: the facts that its choice depends on."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from flcog.client.model import ClientModel
from flcog.data.reading import Reader
from flcog.functional.model_function import ModelFunction
from flcog.settings import Compile


@dataclass(frozen=True)
class Job:
    """The facts that the choice of an executor depends on.

    ``clients`` is the number that one process trains in a round, ``chunk_size`` the number at a time, if the user has set it, and
    ``memory`` the bytes that a batched program may take otherwise. ``lightning`` makes the trainer of clients in Lightning's loops, of
    a learner.
    """

    client: ClientModel
    reader: Reader
    batch_size: int
    clients: int
    chunk_size: int | None
    memory: int
    lightning: Callable[[Any], Any]
    compile: Compile = False

    @property
    def model(self) -> ModelFunction:
        return self.client.function

    @property
    def on_cpu(self) -> bool:
        return self.device.type == "cpu"

    @property
    def device(self) -> torch.device:
        return next(iter(self.model.params.values())).device

    @property
    def rows(self) -> int:
        """The number of rows in a batch, unless it is the last of an epoch."""
        return min(self.batch_size, int(self.reader.federation.partition.sizes.max()))

    @property
    def draws_here(self) -> bool:
        """Whether reading samples draws from the random streams of this process."""
        return self.reader.source is not None and self.reader.source.draws_here

    @property
    def num_params(self) -> int:
        return sum(p.numel() for p in self.model.params.values())
