"""Which executor runs the clients, how many of them at a time, and why."""

import warnings
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch

from flcog.apply import ModelFunction
from flcog.core.processes import Processes
from flcog.core.trees import Tree, first_leaf, num_bytes
from flcog.engine.executors.base import Assignment, Executor, Result
from flcog.engine.executors.fastest import Choice, FastestExecutor
from flcog.engine.executors.loop import LoopExecutor
from flcog.engine.executors.own_steps import Traces, traces
from flcog.engine.executors.threads import ThreadedLoop
from flcog.engine.executors.vmap import ELEMENTWISE, VmapExecutor
from flcog.hooks import Method, Note

SMALL_STEP = 5_000_000
"""One client's multiply-adds per step up to which batching fully connected models took at most 0.6 of the loop's time on a CPU."""

MOST_AT_ONCE = 8
"""Clients side by side, whatever the cores: up to a fifth of SimpleCNN's step on 64 images is Python, which one thread at a time runs."""

CHUNK_BYTES = {True: 64 * 2**20, False: 8 * 2**30}
"""Memory for one chunk's parameters, gradients, optimiser state and batch, on a CPU and on an accelerator that does not say what it has."""

CHUNK_SHARE = 0.25
"""The same as a share of a GPU's memory, or of a process's part of it: activations, which differ from model to model, need the rest. Not
of what is free, which would make runs of one configuration differ."""


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
        reads_whole_batches: whether every batch is read by itself, so that batches may differ in shape.
        unlike_batches: in what batches of the first clients differ, if they do.
        draws_here: whether samples are read in this process, by code that draws from its random streams.
        per_device: how many processes share the device's memory.
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
    reads_whole_batches: bool = False
    unlike_batches: str = ""
    draws_here: bool = False
    per_device: int = 1

    @property
    def on_cpu(self) -> bool:
        return self.device.type == "cpu"

    @property
    def device(self) -> torch.device:
        device: torch.device = first_leaf(self.sample).device
        return device

    @property
    def num_params(self) -> int:
        return sum(p.numel() for p in self.model.params.values())

    @cached_property
    def own_step(self) -> Traces:
        """What the user's own ``training_step`` leaves behind."""
        return traces(self.model, self.sample, self.targets)


def choose_executor(
    job: Job, wanted: Literal["auto", "loop", "vmap", "vmap-patches", "fastest"], notes: list[Note], processes: Processes
) -> Executor:
    """The executor; where the user did not choose it, a note says why."""
    if wanted == "loop":
        return loop(job, notes)
    if wanted == "fastest":
        return _fastest(job, notes, processes)
    if obstacles := _obstacles_to_vmap(job):
        if wanted != "auto":
            warnings.warn(f"executor={wanted} falls back to loop: {obstacles}", stacklevel=2)
        return loop(job, notes, obstacles)
    if wanted == "auto" and job.reads_whole_batches:
        return loop(job, notes, "a collate_fn may give clients' batches different shapes")
    constants = sum(constant.numel() for constant in job.model.constants.values())
    work = (job.num_params + constants) * min(job.batch_size, job.largest_client)
    if wanted == "auto" and job.on_cpu and (job.model.convolves or work > SMALL_STEP):
        return loop(job, notes, "on a CPU batching clients pays only for small models without convolutions")
    chunk = _chunk(job)
    if wanted == "auto":
        why = (
            "a small model: a step's Python outweighs its arithmetic" if job.on_cpu else "clients share the accelerator's kernels"
        )
        notes.append(Note("executor", f"vmap, {chunk} clients at a time ({why})"))
    return VmapOrLoop(job, VmapExecutor(job.model, job.optimizer, chunk, wanted == "vmap-patches"), notes)


def _chunk(job: Job) -> int:
    """How many clients make one batched program: as many as the user says, or as fit into memory."""
    bytes_per_client = 16 * job.num_params + 8 * num_bytes(job.sample) * job.batch_size
    return job.chunk_size or max(1, min(256, _chunk_bytes(job.device, job.per_device) // max(1, bytes_per_client)))


def _chunk_bytes(device: torch.device, per_device: int) -> int:
    """What one of a device's processes may take. On a CPU these are caches, of which each core has its own."""
    if device.type == "cuda":
        return int(CHUNK_SHARE * torch.cuda.get_device_properties(device).total_memory) // per_device
    return CHUNK_BYTES[True] if device.type == "cpu" else CHUNK_BYTES[False] // per_device


def _fastest(job: Job, notes: list[Note], processes: Processes) -> Executor:
    """Whichever turns out to be fastest, or the loop where there is nothing to choose from."""
    if job.draws_here:
        return loop(job, notes, "nothing is timed: samples are read in this process, whose random streams a trial would move on")
    choices = _choices(job)
    if len(choices) == 1:
        return loop(job, notes, _obstacles_to_vmap(job))

    def make(choice: Choice) -> Executor:
        if choice.name == "loop":
            return _loop_of(job, choice.clients_at_once)
        return VmapExecutor(job.model, job.optimizer, choice.clients_at_once, choice.name == "vmap-patches")

    return FastestExecutor(choices, make, processes.agree, notes)


def _choices(job: Job) -> list[Choice]:
    """What may run the job, and fits into memory."""
    choices, at_once = [Choice("loop", 1)], min(job.chunk_size or min(torch.get_num_threads(), MOST_AT_ONCE), job.clients)
    if at_once > 1 and not _obstacle_to_threads(job):
        choices.append(Choice("loop", at_once))
    if not _obstacles_to_vmap(job):
        chunk = min(_chunk(job), job.clients)
        # A smaller one may stay in the cache.
        chunks = [chunk, chunk // 4] if chunk >= 8 and job.chunk_size is None else [chunk]
        names = ["vmap-patches", "vmap"] if job.model.convolves else ["vmap"]
        choices += [Choice(name, size) for size in chunks for name in names]
    return choices


def _loop_of(job: Job, at_once: int, tries_one: bool = False) -> LoopExecutor:
    if at_once == 1:
        return LoopExecutor(job.model, job.optimizer)
    return ThreadedLoop(job.model, job.optimizer, at_once, max(1, torch.get_num_threads() // at_once), tries_one)


def loop(job: Job, notes: list[Note], why: str = "") -> LoopExecutor:
    """The loop, and a note about it.

    Clients run side by side on a CPU's cores where their kernels outweigh their Python, which holds a lock on the others. Where it
    may not, the first rounds show whether one at a time, on as many threads, is as fast: that is the same to the bit.

    Args:
        job: what it is to run.
        notes: where the note goes.
        why: a reason for the loop, to be part of the note.
    """
    threads, at_once = torch.get_num_threads(), min(job.chunk_size or 1, job.clients)
    if job.chunk_size is None and job.on_cpu and job.model.convolves:
        turns = -(-job.clients // min(threads, MOST_AT_ONCE))
        at_once = -(-job.clients // turns)
    obstacle = _obstacle_to_threads(job) if at_once > 1 else ""
    tries_one = job.chunk_size is None and at_once > 1 and not obstacle
    or_one = ", or one where that is as fast" * tries_one
    how_many = f"one client at a time: {obstacle}" if obstacle else f"{at_once} clients at a time{or_one}" if at_once > 1 else ""
    text = "; ".join(filter(None, [how_many, why]))
    notes.append(Note("executor", "loop" + f" ({text})" * bool(text)))
    return _loop_of(job, 1 if obstacle else at_once, tries_one)


class VmapOrLoop:
    """Clients as one batched program, or, where torch.func cannot batch it, in the loop: the first chunk decides.

    torch has no error of its own for a program that cannot be batched. So what fails is tried in the loop: if it fails there too,
    that error, which names the client and the step, is the one that is raised. A program that has run once is never given up: what
    fails later (memory that ran out, say) is no reason to go on with other roundings.
    """

    def __init__(self, job: Job, batched: VmapExecutor, notes: list[Note]) -> None:
        self._job, self._notes = job, notes
        self._executor: Executor = batched
        self._has_run = False

    @property
    def name(self) -> str:
        return self._executor.name

    @property
    def clients_at_once(self) -> int:
        return self._executor.clients_at_once

    def run(self, assignment: Assignment) -> Generator[Result, None, None]:
        results, first = self._executor.run(assignment), None
        try:
            first = next(results, None)
        except RuntimeError as error:
            if self._has_run:
                raise
            results, first = self._fall_back(assignment, (str(error).strip() or type(error).__name__).splitlines()[0])
        self._has_run = True
        if first is not None:
            yield first
            yield from results

    def _fall_back(self, assignment: Assignment, reason: str) -> tuple[Generator[Result, None, None], Result | None]:
        """The loop's results from the beginning, the first of them already made."""
        notes: list[Note] = []
        executor = loop(self._job, notes, reason)
        results = executor.run(assignment)
        first = next(results, None)
        self._executor = executor
        self._notes += notes
        warnings.warn(f"executor=vmap falls back to loop: this model or method cannot be vectorised ({reason})", stacklevel=2)
        return results, first


def _obstacles_to_vmap(job: Job) -> str:
    """Why clients cannot be one batched program, if they cannot."""
    own_step = job.own_step.between_clients() if job.model.trains_itself else ""
    obstacles = [own_step] if own_step else []
    if type(job.optimizer) not in ELEMENTWISE:
        obstacles.append(f"{type(job.optimizer).__name__} is no elementwise optimiser")
    if job.unlike_batches:
        obstacles.append(job.unlike_batches)
    return "; ".join(obstacles)


def _obstacle_to_threads(job: Job) -> str:
    """Why clients cannot run side by side in this process, if they cannot."""
    if not job.on_cpu:
        return f"threads share out the cores of a CPU; this run is on {job.device.type}"
    if job.draws_here:
        return "samples are read in this process, whose random streams they share (num_workers above 0 gives them their own)"
    if job.model.trains_itself:
        return job.own_step.between_threads()
    try:
        draws = job.model.draws(job.sample)
    except Exception:  # raised again, with its client and step, once a client trains
        return "its forward pass fails on two copies of a training sample"
    return "the model draws from torch's global stream (flcog.models.Dropout does not)" if draws else ""
