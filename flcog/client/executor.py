"""The Executor protocol: it takes the assignment of a round and returns an iterator of the clients' results."""

import time
from collections.abc import Generator, Sequence
from threading import Event
from typing import NamedTuple, Protocol

import numpy as np
import torch

from flcog.client.program import Program
from flcog.client.work import BLOCK_BYTES, ClientWork
from flcog.core.randomness import fold, fold_each
from flcog.core.types import Slot
from flcog.data.reading import Reader
from flcog.settings import Compile
from flcog.wire.envelope import Envelope, Manifest


class Result(NamedTuple):
    """The results of one or several clients. Tensors have a leading client axis.

    ``training`` is the state of a single client's training for its next round. ``seconds`` are those of each client, equal shares if
    they trained as one program.
    """

    works: Sequence[ClientWork]
    envelope: Envelope
    states: list[Slot]
    manifest: Manifest
    training: Slot = {}
    seconds: float = 0.0

    def since(self, began: float) -> "Result":
        """The result of a training that began then. Nothing waits for a GPU, which the processor runs ahead of by some kernels."""
        return self._replace(seconds=(time.perf_counter() - began) / len(self.works))


class StopRequest(Exception):
    """Ends a client's training early, because another client failed or no caller waits for the result."""


class Assignment(NamedTuple):
    """The part of a round that one process runs."""

    program: Program
    works: Sequence[ClientWork]
    reader: Reader
    rates: Sequence[float]
    """The learning rates of the optimiser's groups in this round."""
    seed: int
    round: int
    stop: Event | None = None
    """When this is set, training ends before the next local step."""

    def set_rates(self, optimizer: torch.optim.Optimizer) -> None:
        """Set the learning rates of the optimiser's groups for the round."""
        for group, rate in zip(optimizer.param_groups, self.rates, strict=True):
            group["lr"] = rate

    def stream_seed(self, client: int) -> int:
        """The seed of the global random streams for a client's training."""
        return fold(self.seed, self.round, client, "torch") >> 1

    def dropout_keys(self, layers: Sequence[str], clients: Sequence[int]) -> dict[str, np.ndarray]:
        """Keys [clients] for each layer: its noise is a function of the seed, the round, the client and the layer."""
        return {name: fold_each(fold(self.seed, self.round, "dropout", name), clients).astype(np.int64) for name in layers}

    @property
    def rows_per_pass(self) -> int:
        """The number of rows to read at a time in a pass over a client's data without training."""
        return max(1, 4 * BLOCK_BYTES // max(1, self.reader.bytes_per_sample))


class Choice(NamedTuple):
    """The choice of an executor."""

    name: str
    clients_at_once: int
    compiled: Compile = False

    def __str__(self) -> str:
        how = f"{self.name}, {self.clients_at_once} client{'s' * (self.clients_at_once > 1)} at a time"
        return f"{how}, {'CUDA graphs' if self.compiled == 'graphs' else 'compiled'}" if self.compiled else how


class Executor(Protocol):
    """Runs the clients of a round: one after another, on threads, as one batched program, or on a GPU's streams."""

    @property
    def name(self) -> str:
        """The name that users give: ``loop``, ``vmap`` or ``vmap-patches``."""

    @property
    def clients_at_once(self) -> int:
        """The number of clients that train side by side."""

    @property
    def compiled(self) -> Compile:
        """Whether local steps are compiled, or captured as CUDA graphs."""

    def run(self, assignment: Assignment) -> Generator[Result, None, None]:
        """Train the clients and yield their results."""


def longest_first(works: Sequence[ClientWork]) -> list[ClientWork]:
    """Sort clients by their number of steps, longest first, so that threads finish at about the same time."""
    return sorted(works, key=lambda work: -work.num_steps)
