"""What the choice of an executor depends on, and what stands in the way of some."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch

from flcog.apply import ModelFunction
from flcog.core.trees import Tree, first_leaf
from flcog.execute.optimizer import ELEMENTWISE
from flcog.execute.own_steps import Traces, traces
from flcog.method import Method
from flcog.settings import Compile


@dataclass(frozen=True)
class Job:
    """What the choice depends on.

    Args:
        model: the client's model, with its parameters on the device that trains.
        optimizer: the module's own.
        methods: of the run.
        sample, targets: one input with its targets, [1, ...].
        batch_size: of a local step.
        largest_client: the most samples that a client has.
        clients: how many one process trains in a round.
        chunk_size: how many of them at a time, if the user says so.
        memory: bytes that those in one batched program may take, if not.
        compile: whether local steps are to be compiled, or captured as CUDA graphs.
        reads_whole_batches: whether every batch is read by itself, so that batches may differ in shape.
        unlike_batches: in what batches of the first clients differ, if they do.
        draws_here: whether samples are read in this process, by code that draws from its random streams.
    """

    model: ModelFunction
    optimizer: torch.optim.Optimizer
    methods: Sequence[Method]
    sample: Tree
    targets: Tree
    batch_size: int
    largest_client: int
    clients: int
    chunk_size: int | None
    memory: int
    compile: Compile = False
    reads_whole_batches: bool = False
    unlike_batches: str = ""
    draws_here: bool = False

    @property
    def on_cpu(self) -> bool:
        return self.device.type == "cpu"

    @property
    def device(self) -> torch.device:
        device: torch.device = first_leaf(self.sample).device
        return device

    @property
    def rows(self) -> int:
        """Of a batch, unless it is an epoch's last."""
        return min(self.batch_size, self.largest_client)

    @property
    def num_params(self) -> int:
        return sum(p.numel() for p in self.model.params.values())

    @cached_property
    def own_step(self) -> Traces:
        """What the user's own ``training_step`` leaves behind."""
        return traces(self.model, self.sample, self.targets)


def obstacles_to_vmap(job: Job) -> str:
    """Why clients cannot be one batched program, if they cannot."""
    own_step = job.own_step.between_clients() if job.model.trains_itself else ""
    obstacles = [own_step] if own_step else []
    if type(job.optimizer) not in ELEMENTWISE:
        obstacles.append(f"{type(job.optimizer).__name__} is no elementwise optimiser")
    if job.unlike_batches:
        obstacles.append(job.unlike_batches)
    return "; ".join(obstacles)


def obstacles_to_compiling(job: Job) -> str:
    """Why a local step cannot be one program on tensors, if it cannot."""
    obstacles = list(filter(None, [obstacles_to_vmap(job)]))
    if job.reads_whole_batches:
        obstacles.append("a collate_fn may give clients' batches different shapes")
    if not job.model.trains_itself and (reason := _draws(job)):
        obstacles.append(reason)
    return "; ".join(obstacles)


def obstacle_to_threads(job: Job) -> str:
    """Why clients cannot run side by side in this process, if they cannot."""
    if not job.on_cpu:
        return f"threads share out the cores of a CPU; this run is on {job.device.type}"
    if job.draws_here:
        return "samples are read in this process, whose random streams they share (num_workers above 0 gives them their own)"
    if job.model.trains_itself:
        return job.own_step.between_threads()
    return _draws(job)


def _draws(job: Job) -> str:
    """That the model draws from torch's global stream, if it does."""
    try:
        draws = job.model.draws(job.sample)
    except Exception:  # raised again, with its client and step, once a client trains
        return "its forward pass fails on two copies of a training sample"
    return "the model draws from torch's global stream (flcog.models.Dropout does not)" if draws else ""
