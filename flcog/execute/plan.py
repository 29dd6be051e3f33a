"""Plans how the clients run: which placement and steps, how many clients at a time, and why."""

import dataclasses
import warnings
from typing import Literal, NamedTuple

import torch

from flcog.client.executor import Choice
from flcog.core.trees import num_bytes
from flcog.execute.job import Job, obstacle_to_threads, obstacles_to_compiling, obstacles_to_vmap
from flcog.execute.memory import activation_bytes

SMALL_STEP = 5_000_000
"""The most multiply-adds per step of one client: below, batched fully connected models took at most 0.6 of the loop's time on a CPU."""

MOST_AT_ONCE = 8
"""The most clients that run side by side on a CPU. Up to a fifth of SimpleCNN's step on 64 images is Python, which runs on one thread
at a time."""

STREAMS = 4
"""The number of clients side by side on a GPU, each on a stream of its own. On an H100, a round of SimpleCNN took 0.26 s with one
stream and 0.21 s with two, four or eight."""

Times = dict[Choice, float]
"""The seconds that a client takes with each choice."""


class Plan(NamedTuple):
    """The choices that may run the clients.

    Args:
        choices: a single choice, or several that are timed. The first of several is the loop with one client.
        note: the plan and its reason, for users.
        timed: whether the first round times the choices.
        tries_one: whether the first rounds show if one client at a time, on as many threads, is as fast.
        varies: whether another run of the same configuration might make another choice.
    """

    choices: list[Choice]
    note: str
    timed: bool = False
    tries_one: bool = False
    varies: bool = False


def plan_for(job: Job, wanted: Literal["auto", "loop", "vmap", "vmap-patches", "fastest"]) -> Plan:
    """The plan for a job.

    Args:
        job: describes the model and the clients.
        wanted: the user's setting.
    """
    if wanted == "loop" or (job.faithful and wanted in ("auto", "fastest")):
        return loop_plan(job)
    if wanted == "fastest":
        return _timed_plan(job)
    if obstacles := obstacles_to_vmap(job):
        if wanted != "auto":
            warnings.warn(f"executor={wanted} falls back to loop: {obstacles}", stacklevel=3)
        return loop_plan(job, obstacles)
    if wanted == "auto" and job.reader.whole_batches:
        return loop_plan(job, "a collate_fn may give clients' batches different shapes")
    constants = sum(constant.numel() for constant in job.model.constants.values())
    work = (job.num_params + constants) * job.rows
    if wanted == "auto" and job.on_cpu and (job.model.convolves or work > SMALL_STEP):
        return loop_plan(job, "on a CPU batching clients pays only for small models without convolutions")
    chunk = _evenly(job, _chunk(job, patches=wanted == "vmap-patches"))
    why = "a small model: a step's Python outweighs its arithmetic" if job.on_cpu else "clients share the accelerator's kernels"
    name = "vmap" if wanted == "auto" else wanted
    reasons = "; ".join(filter(None, [why if wanted == "auto" else "", _tip(job)]))
    note = f"{name}, up to {chunk} clients at a time" + f" ({reasons})" * bool(reasons)
    # The number of clients depends on the memory that was free on the GPU.
    return Plan([Choice(name, chunk, job.compile)], note, varies=not job.on_cpu and job.chunk_size is None)


def loop_plan(job: Job, why: str = "") -> Plan:
    """The plan to run the loop.

    Clients run side by side on a CPU's cores where their kernels take longer than their Python, which holds a lock that all threads
    need. The first rounds show whether one client at a time is as fast, where it uses as many threads and gives the same bits.

    Args:
        job: describes the model and the clients.
        why: a reason for the loop, for the note.
    """
    if job.faithful:
        return Plan([Choice("loop", 1)], f"loop (one client at a time: {job.faithful})")
    threads, at_once = torch.get_num_threads(), min(job.chunk_size or 1, job.clients)
    if job.chunk_size is None and job.on_cpu and job.model.convolves:
        turns = -(-job.clients // min(threads, MOST_AT_ONCE))
        at_once = -(-job.clients // turns)
    if job.compile == "graphs":
        at_once = _streams(job)
    obstacle = obstacle_to_threads(job) if at_once > 1 and job.compile != "graphs" else ""
    tries_one = job.chunk_size is None and at_once > 1 and not obstacle and not job.compile
    or_one = ", or one where that is as fast" * tries_one
    how_many = f"one client at a time: {obstacle}" if obstacle else f"{at_once} clients at a time{or_one}" if at_once > 1 else ""
    compiled = {False: "", True: "compiled", "graphs": "CUDA graphs"}[job.compile]
    text = "; ".join(filter(None, [how_many, compiled, why, _tip(job)]))
    choice = Choice("loop", 1 if obstacle else at_once, job.compile)
    return Plan([choice], "loop" + f" ({text})" * bool(text), tries_one=tries_one)


def _timed_plan(job: Job) -> Plan:
    """The plan to take the fastest choice, or the loop where there is no other."""
    if job.draws_here:
        return loop_plan(job, "nothing is timed: samples are read in this process, whose random streams a trial would move on")
    choices = _choices(job)
    if len(choices) == 1 and not job.compile:
        return loop_plan(job, obstacles_to_vmap(job))
    return Plan(choices, f"the fastest, timed in round 1, of {'; '.join(map(str, choices))}", timed=True, varies=True)


def _choices(job: Job) -> list[Choice]:
    """All choices without compiled steps that can run the job and fit into memory."""
    choices, at_once = [Choice("loop", 1)], min(job.chunk_size or min(torch.get_num_threads(), MOST_AT_ONCE), job.clients)
    if at_once > 1 and not obstacle_to_threads(job):
        choices.append(Choice("loop", at_once))
    if not obstacles_to_vmap(job):
        largest = [Choice("vmap", min(_chunk(job, patches=False), job.clients))]
        if job.model.convolves:
            largest.insert(0, Choice("vmap-patches", min(_chunk(job, patches=True), job.clients)))
        choices += largest
        if job.chunk_size is None:  # A smaller chunk may stay in the cache.
            choices += [
                choice._replace(clients_at_once=choice.clients_at_once // 4) for choice in largest if choice.clients_at_once >= 8
            ]
    return choices


def compiled_choices(job: Job, times: Times) -> list[Choice]:
    """The fastest loop and the fastest batched program, compiled. The others are left out, because compiling takes long."""
    if not job.compile:
        return []
    loops, batched = ([choice for choice in times if (choice.name == "loop") == is_loop] for is_loop in (True, False))
    fastest = [min(some, key=lambda choice: times[choice]) for some in (loops, batched) if some]
    return [Choice(choice.name, _clients_if_compiled(job, choice), job.compile) for choice in fastest]


def _clients_if_compiled(job: Job, choice: Choice) -> int:
    """The number of clients at a time with the same placement and compiled steps."""
    if choice.name != "loop":
        return _evenly(job, choice.clients_at_once)
    return _streams(job) if job.compile == "graphs" else choice.clients_at_once


def _chunk(job: Job, patches: bool) -> int:
    """The number of clients in a batched program: the user's, or as many as fit into memory."""
    if job.chunk_size is not None:
        return job.chunk_size
    bytes_per_client = 16 * job.num_params + 8 * num_bytes(job.reader.example) * job.batch_size
    if not job.on_cpu:
        bytes_per_client += activation_bytes(job, patches)
    return max(1, min(256, job.memory // max(1, bytes_per_client)))


def _evenly(job: Job, most: int) -> int:
    """The chunk size that makes all chunks as equal as possible, if steps are compiled: a program needs a fixed number of clients.

    A chunk size from a checkpoint is taken as it is: after memory ran out it may be any number.
    """
    return -(-job.clients // -(-job.clients // most)) if job.compile else most


def _streams(job: Job) -> int:
    return min(job.chunk_size or STREAMS, job.clients)


def compilable(job: Job) -> Job:
    """The job without compiled steps, or without CUDA graphs, where these are impossible; a warning says why."""
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


def _tip(job: Job) -> str:
    """The advice to capture the local steps, on a GPU where that is possible; otherwise an empty string."""
    if job.compile or not _captures(job.device) or obstacles_to_compiling(job):
        return ""
    return "trainer.compile=graphs is often several times faster"


def _captures(device: torch.device) -> bool:
    """Whether work on the device can be captured as a CUDA graph."""
    return device.type == "cuda"
