"""The job of an executor: the facts that its choice depends on, and the obstacles to some choices."""

from dataclasses import dataclass
from functools import cached_property

import torch

from flcog.client.model import ClientModel
from flcog.core.global_streams import draws_from
from flcog.core.types import Batch
from flcog.execute.optimizer import ELEMENTWISE
from flcog.execute.own_steps import Traces, traces
from flcog.model_function import ModelFunction
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

    @cached_property
    def draws(self) -> list[str] | None:
        """The libraries whose global random streams the forward pass uses; None if it fails on two copies of a sample."""
        try:
            return self.model.draws(self.reader.example)
        except Exception:  # The error comes again, with its client and step, when a client trains.
            return None

    @property
    def num_params(self) -> int:
        return sum(p.numel() for p in self.model.params.values())

    @cached_property
    def own_step(self) -> Traces:
        """The side effects of the module's own ``training_step``."""
        return traces(self.model, self.two_copies.given, self.device)


def obstacles_to_vmap(job: Job) -> str:
    """The reasons why clients cannot be one batched program, or an empty string."""
    if job.faithful:
        return f"one client at a time: {job.faithful}"
    own = job.own_step.between_clients() if job.model.trains_itself else _draws(job, "NumPy", "Python")
    obstacles = [own] if own else []
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
    if not job.model.trains_itself and (reason := _fails(job) or _draws(job, "torch")):
        obstacles.append(reason)
    return "; ".join(obstacles)


def obstacle_to_threads(job: Job) -> str:
    """The reason why clients cannot run side by side in this process, or an empty string."""
    if not job.on_cpu:
        return f"threads share out the cores of a CPU; this run is on {job.device.type}"
    if job.draws_here:
        return "samples are read in this process, whose random streams they share (num_workers above 0 gives them their own)"
    if job.model.trains_itself:
        return job.own_step.between_threads()
    return _fails(job) or _draws(job, "torch", "NumPy", "Python")


def _fails(job: Job) -> str:
    return "its forward pass fails on two copies of a training sample" if job.draws is None else ""


def _draws(job: Job, *libraries: str) -> str:
    """A sentence that the model draws from the global streams of one of these libraries, or an empty string."""
    sentence = draws_from([name for name in job.draws or () if name in libraries])
    return f"the model {sentence}" if sentence else ""
