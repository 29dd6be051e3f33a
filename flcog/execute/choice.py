"""Which executor runs the clients, how many of them at a time, and why."""

import dataclasses
import warnings
from collections.abc import Generator
from functools import partial
from typing import Literal

import torch

from flcog.client.executor import Assignment, Executor, Result
from flcog.core.processes import Processes
from flcog.core.trees import num_bytes
from flcog.execute.activations import activation_bytes
from flcog.execute.fastest import Choice, FastestExecutor, Times
from flcog.execute.job import Job, obstacle_to_threads, obstacles_to_vmap
from flcog.execute.making import compilable, make_batched, make_loop
from flcog.execute.vmap import VmapExecutor
from flcog.method import ExecutorNote, MemoryNote, Notes
from flcog.settings import Compile

SMALL_STEP = 5_000_000
"""One client's multiply-adds per step up to which batching fully connected models took at most 0.6 of the loop's time on a CPU."""

MOST_AT_ONCE = 8
"""Clients side by side, whatever the cores: up to a fifth of SimpleCNN's step on 64 images is Python, which one thread at a time runs."""

STREAMS = 4
"""Clients side by side on a GPU, each a graph on a stream of its own: a guess, for no GPU has been measured yet."""


def choose_executor(
    job: Job, wanted: Literal["auto", "loop", "vmap", "vmap-patches", "fastest"], notes: Notes, processes: Processes
) -> Executor:
    """The executor; where the user did not choose it, a note says why."""
    job = compilable(job)
    if wanted == "loop":
        return loop(job, notes)
    if wanted == "fastest":
        return _fastest(job, notes, processes)
    if obstacles := obstacles_to_vmap(job):
        if wanted != "auto":
            warnings.warn(f"executor={wanted} falls back to loop: {obstacles}", stacklevel=2)
        return loop(job, notes, obstacles)
    if wanted == "auto" and job.reads_whole_batches:
        return loop(job, notes, "a collate_fn may give clients' batches different shapes")
    constants = sum(constant.numel() for constant in job.model.constants.values())
    work = (job.num_params + constants) * job.rows
    if wanted == "auto" and job.on_cpu and (job.model.convolves or work > SMALL_STEP):
        return loop(job, notes, "on a CPU batching clients pays only for small models without convolutions")
    chunk = _evenly(job, _chunk(job, patches=wanted == "vmap-patches"))
    why = "a small model: a step's Python outweighs its arithmetic" if job.on_cpu else "clients share the accelerator's kernels"
    name = "vmap" if wanted == "auto" else wanted
    notes.add(ExecutorNote(f"{name}, {chunk} clients at a time" + f" ({why})" * (wanted == "auto")))
    return VmapOrLoop(job, make_batched(job, chunk, wanted == "vmap-patches", notes), notes)


def _chunk(job: Job, patches: bool) -> int:
    """How many clients make one batched program: as many as the user says, or as fit into memory."""
    if job.chunk_size is not None:
        return job.chunk_size
    bytes_per_client = 16 * job.num_params + 8 * num_bytes(job.sample) * job.batch_size
    if not job.on_cpu:
        bytes_per_client += activation_bytes(job, patches)
    return max(1, min(256, job.memory // max(1, bytes_per_client)))


def _evenly(job: Job, most: int) -> int:
    """As many clients in every chunk, as far as they go, where steps are compiled: a program is made for one number of clients.

    Not where a checkpoint says how many: after memory ran out that may be any number.
    """
    return -(-job.clients // -(-job.clients // most)) if job.compile else most


def _fastest(job: Job, notes: Notes, processes: Processes) -> Executor:
    """Whichever turns out to be fastest, or the loop where there is nothing to choose from."""
    if job.draws_here:
        return loop(job, notes, "nothing is timed: samples are read in this process, whose random streams a trial would move on")
    choices = _choices(job)
    if len(choices) == 1 and not job.compile:
        return loop(job, notes, obstacles_to_vmap(job))

    def make(choice: Choice) -> Executor:
        chosen = dataclasses.replace(job, compile=choice.compiled)
        if choice.name == "loop":
            return make_loop(chosen, choice.clients_at_once, notes)
        return make_batched(chosen, choice.clients_at_once, choice.name == "vmap-patches", notes)

    return FastestExecutor(choices, partial(_compiled_choices, job), make, processes.agree, notes)


def _choices(job: Job) -> list[Choice]:
    """What may run the job, and fits into memory."""
    choices, at_once = [Choice("loop", 1)], min(job.chunk_size or min(torch.get_num_threads(), MOST_AT_ONCE), job.clients)
    if at_once > 1 and not obstacle_to_threads(job):
        choices.append(Choice("loop", at_once))
    if not obstacles_to_vmap(job):
        largest = [Choice("vmap", min(_chunk(job, patches=False), job.clients))]
        if job.model.convolves:
            largest.insert(0, Choice("vmap-patches", min(_chunk(job, patches=True), job.clients)))
        choices += largest
        if job.chunk_size is None:  # a smaller one may stay in the cache
            choices += [
                choice._replace(clients_at_once=choice.clients_at_once // 4) for choice in largest if choice.clients_at_once >= 8
            ]
    return choices


def _compiled_choices(job: Job, times: Times) -> list[Choice]:
    """The fastest loop and the fastest batched program, compiled: not all, as each takes its time to compile."""
    if not job.compile:
        return []
    loops, batched = ([choice for choice in times if (choice.name == "loop") == is_loop] for is_loop in (True, False))
    fastest = [min(some, key=lambda choice: times[choice]) for some in (loops, batched) if some]
    if job.compile == "graphs":
        fastest = [choice._replace(clients_at_once=_streams(job)) if choice.name == "loop" else choice for choice in fastest]
    fastest = [
        choice if choice.name == "loop" else choice._replace(clients_at_once=_evenly(job, choice.clients_at_once))
        for choice in fastest
    ]
    return [choice._replace(compiled=job.compile) for choice in fastest]


def _streams(job: Job) -> int:
    return min(job.chunk_size or STREAMS, job.clients)


def loop(job: Job, notes: Notes, why: str = "") -> Executor:
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
    if job.compile == "graphs":
        at_once = _streams(job)
    obstacle = obstacle_to_threads(job) if at_once > 1 and job.compile != "graphs" else ""
    tries_one = job.chunk_size is None and at_once > 1 and not obstacle and not job.compile
    or_one = ", or one where that is as fast" * tries_one
    how_many = f"one client at a time: {obstacle}" if obstacle else f"{at_once} clients at a time{or_one}" if at_once > 1 else ""
    compiled = {False: "", True: "compiled", "graphs": "CUDA graphs"}[job.compile]
    text = "; ".join(filter(None, [how_many, compiled, why]))
    notes.add(ExecutorNote("loop" + f" ({text})" * bool(text)))
    return make_loop(job, 1 if obstacle else at_once, notes, tries_one)


class VmapOrLoop:
    """Clients as one batched program, or, where torch.func cannot batch it, in the loop: the first chunk decides.

    torch has no error of its own for a program that cannot be batched. So what fails is tried in the loop: if it fails there too,
    that error, which names the client and the step, is the one that is raised. A program that has run once is never given up: what
    fails later (memory that ran out, say) is no reason to go on with other roundings.
    """

    def __init__(self, job: Job, batched: VmapExecutor, notes: Notes) -> None:
        self._job, self._notes = job, notes
        self._executor: Executor = batched
        self._has_run = False

    @property
    def name(self) -> str:
        return self._executor.name

    @property
    def clients_at_once(self) -> int:
        return self._executor.clients_at_once

    @property
    def compiled(self) -> Compile:
        return self._executor.compiled

    @property
    def choice(self) -> Choice | None:
        """What another run of the same configuration might not choose: as many clients as a GPU's memory has left room for."""
        if self._job.on_cpu or self._job.chunk_size is not None:
            return None
        return Choice(self.name, self.clients_at_once, self.compiled)

    def settle(self, choice: Choice, why: str) -> None:
        """Take over how many clients a checkpoint's run had at a time, or that it went on in the loop."""
        if self.choice is None or choice == self.choice:
            return
        if choice.name == "loop":  # for want of memory, maybe, of which there is more now
            self._executor = loop(self._job, self._notes, why)
            self._has_run = True
        elif choice.name == self.name:
            self._notes.add(MemoryNote(f"{choice.clients_at_once} clients at a time, {why}"))
            self._executor = make_batched(self._job, choice.clients_at_once, choice.name == "vmap-patches", self._notes)

    def run(self, assignment: Assignment) -> Generator[Result, None, None]:
        results, first, reason = self._executor.run(assignment), None, ""
        try:
            first = next(results, None)
        except RuntimeError as error:
            if self._has_run:
                raise
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        if reason:  # not from the above: until the error is gone, it holds the memory of the chunk
            results, first = self._fall_back(assignment, reason)
        self._has_run = True
        if first is not None:
            yield first
            yield from results

    def _fall_back(self, assignment: Assignment, reason: str) -> tuple[Generator[Result, None, None], Result | None]:
        """The loop's results from the beginning, the first of them already made."""
        notes = Notes()
        executor = loop(self._job, notes, reason)
        results = executor.run(assignment)
        first = next(results, None)
        self._executor = executor
        self._notes.add(*notes)
        warnings.warn(f"executor=vmap falls back to loop: this model or method cannot be vectorised ({reason})", stacklevel=2)
        return results, first
