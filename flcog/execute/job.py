"""The job of an executor: the facts that its choice depends on, and the obstacles to some choices."""

import dataclasses
from dataclasses import dataclass
from functools import cached_property

import torch

from flcog.client.model import ClientModel
from flcog.core.types import Batch
from flcog.execute.optimizer import ELEMENTWISE
from flcog.execute.side_effects import Traces, traces_of_loss, traces_of_own_step
from flcog.model_function import ModelFunction, shared_hook
from flcog.reading import Reader
from flcog.settings import Compile


@dataclass(frozen=True)
class Job:
    """The facts that the choice of an executor depends on.

    Args:
        client: the client's model, on the device that trains, and its optimiser.
        reader: reads the clients' batches.
        two_copies: a batch with two copies of a sample.
        batch_size: of a local step.
        clients: the number of clients that one process trains in a round.
        chunk_size: the number of clients at a time, if the user has set it.
        memory: the bytes that a batched program may take, if the user has not set it.
        compile: whether to compile local steps, or to capture them as CUDA graphs.
        unlike_batches: a difference between the first clients' batches, in words, if there is any.
    """

    client: ClientModel
    reader: Reader
    two_copies: Batch
    batch_size: int
    clients: int
    chunk_size: int | None
    memory: int
    compile: Compile = False
    unlike_batches: str = ""

    @property
    def model(self) -> ModelFunction:
        return self.client.function

    @property
    def faithful(self) -> str:
        """The reason why clients are trained by the faithful step, one at a time; empty for the pure step."""
        return self.client.hooks.reason

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

    @cached_property
    def traces(self) -> Traces:
        """The side effects of a local step."""
        batch, own = self.two_copies, self.model.trains_itself
        traces = (
            traces_of_own_step(self.model, batch.given, self.device) if own else traces_of_loss(self.model, batch, self.device)
        )
        return dataclasses.replace(traces, keeps=traces.keeps or shared_hook(self.model.module))


def obstacles_to_vmap(job: Job) -> str:
    """The reasons why clients cannot be one batched program, or an empty string."""
    if job.faithful:
        return f"one client at a time: {job.faithful}"
    trace = job.traces.between_clients(job.model.trains_itself)
    obstacles = [trace] if trace else []
    if type(job.client.optimizer) not in ELEMENTWISE:
        obstacles.append(f"{type(job.client.optimizer).__name__} is no elementwise optimiser")
    if job.unlike_batches:
        obstacles.append(job.unlike_batches)
    return "; ".join(obstacles)


def obstacles_to_compiling(job: Job) -> str:
    """The reasons why a local step cannot be compiled, or an empty string."""
    obstacles = list(filter(None, [obstacles_to_vmap(job)]))
    if job.reader.whole_batches:
        obstacles.append("a collate_fn may give clients' batches different shapes")
    if not job.model.trains_itself and (reason := job.traces.fails or job.traces.draws("torch")):
        obstacles.append(reason)
    return "; ".join(obstacles)


def obstacle_to_threads(job: Job) -> str:
    """The reason why clients cannot run side by side in this process, or an empty string."""
    if not job.on_cpu:
        return f"threads share out the cores of a CPU; this run is on {job.device.type}"
    if job.draws_here:
        return "samples are read in this process, whose random streams they share (num_workers above 0 gives them their own)"
    return job.traces.between_threads()
