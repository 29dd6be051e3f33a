"""Executors, made as a job asks for them: plain, compiled, or captured as CUDA graphs."""

import dataclasses
import warnings

import torch

from flcog.apply import ModelFunction
from flcog.client.executor import Executor
from flcog.execute.batched_layers import batched_layers
from flcog.execute.compiled import CompiledSteps, Programs
from flcog.execute.compiled_loop import CompiledLoop
from flcog.execute.cuda_graphs import GraphLoop, Graphs
from flcog.execute.job import Job, obstacles_to_compiling
from flcog.execute.loop import LoopExecutor
from flcog.execute.threads import ThreadedLoop
from flcog.execute.vmap import VmapExecutor
from flcog.method import Notes


def compilable(job: Job) -> Job:
    """The job, which is compiled only where it can be."""
    if not job.compile:
        return job
    obstacles = obstacles_to_compiling(job)
    if obstacles:
        warnings.warn(f"trainer.compile={job.compile} is left out, local steps run uncompiled: {obstacles}", stacklevel=3)
        return dataclasses.replace(job, compile=False)
    if job.compile == "graphs" and not _captures(job.device):
        warnings.warn(
            f"trainer.compile=graphs: CUDA graphs need a CUDA device, this run is on {job.device.type}; local steps are compiled "
            "without them, as by trainer.compile=true",
            stacklevel=3,
        )
        return dataclasses.replace(job, compile=True)
    return job


def _captures(device: torch.device) -> bool:
    """Whether work on the device can be captured as a CUDA graph."""
    return device.type == "cuda"


def make_loop(job: Job, at_once: int, notes: Notes, tries_one: bool = False) -> Executor:
    """The loop for so many clients at a time: on threads, or on a GPU's streams."""
    if job.compile == "graphs":
        return GraphLoop(job.model, job.optimizer, Graphs(notes, compiles=False), job.rows, at_once)
    programs = Programs(notes)

    def one(model: ModelFunction, optimizer: torch.optim.Optimizer, seeds_torch: bool = True) -> LoopExecutor | CompiledLoop:
        if not job.compile:
            return LoopExecutor(model, optimizer, seeds_torch)
        return CompiledLoop(model, optimizer, CompiledSteps(model, optimizer, programs, 1, job.rows), seeds_torch)

    if at_once == 1:
        return one(job.model, job.optimizer)
    return ThreadedLoop(job.model, job.optimizer, at_once, max(1, torch.get_num_threads() // at_once), tries_one, one)


def make_batched(job: Job, chunk: int, patches: bool, notes: Notes) -> VmapExecutor:
    """So many clients as one batched program."""
    if not job.compile:
        return VmapExecutor(job.model, job.optimizer, chunk, patches)
    programs = Graphs(notes) if job.compile == "graphs" else Programs(notes)
    steps = CompiledSteps(job.model, job.optimizer, programs, chunk, job.rows, batched_layers(job.model, patches))
    return VmapExecutor(job.model, job.optimizer, chunk, patches, steps)
